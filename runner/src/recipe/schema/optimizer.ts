import { z } from "zod";
import { fraction, key, positiveNumber, section } from "./key.ts";

const decay = z.number().min(0).lt(1);

/** What a section says of how its model is stepped. */
export function optimizerKeys(name: "actor" | "critic", model: string, lr: number) {
  const metrics = name === "actor" ? ["lr"] : ["critic_lr"];
  return {
    adam: section(`AdamW of the ${model}.`, {
      lr: key(positiveNumber, lr, "Peak learning rate.", {
        metrics: [...metrics, ...(name === "actor" ? ["grad_norm", "policy_kl"] : ["value_loss"])],
      }),
      betas: key(z.tuple([decay, decay]), [0.9, 0.95], "Decay of the first and second moment's running mean."),
      eps: key(positiveNumber, 1e-8, "Added to the second moment's root before dividing."),
      weight_decay: key(z.number().min(0), 0, "Decoupled decay of matrices (norms are not decayed)."),
    }),
    lr_scheduler: key(z.enum(["constant", "linear", "cosine"]), "constant", "Learning rate after its warm-up.", {
      metrics,
    }),
    lr_warmup_ratio: key(fraction, 0.03, "Part of the steps in which the learning rate rises from 0.", { metrics }),
    min_lr_ratio: key(fraction, 0.1, `Where linear and cosine end, as a part of ${name}.adam.lr.`, { metrics }),
    max_norm: key(positiveNumber, 1, "Gradients are scaled down to this L2 norm.", {
      metrics: [name === "actor" ? "grad_norm" : "critic_grad_norm"],
    }),
  };
}
