import deepSeekV3 from "../../../../recipes/models/DeepSeek-V3.json" with { type: "json" };
import qwen3Dense from "../../../../recipes/models/Qwen3-4B.json" with { type: "json" };
import qwen3Mixture from "../../../../recipes/models/Qwen3-30B-A3B.json" with { type: "json" };
import qwen3Large from "../../../../recipes/models/Qwen3-235B-A22B.json" with { type: "json" };
import quickstart from "../../../../recipes/models/quickstart.json" with { type: "json" };
import smolLm from "../../../../recipes/models/SmolLM2-135M.json" with { type: "json" };

/** Shape configs of public models by name, bundled, so that a recipe is planned before its model is there. */
export const knownModels: Record<string, Record<string, unknown>> = {
  "Qwen3-4B": qwen3Dense,
  "Qwen3-30B-A3B": qwen3Mixture,
  "Qwen3-235B-A22B": qwen3Large,
  "DeepSeek-V3": deepSeekV3,
  "SmolLM2-135M": smolLm,
  quickstart,
};
