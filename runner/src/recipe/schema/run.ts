import { z } from "zod";
import { key, keyWithoutDefault, optionalKey, positiveInteger, section } from "./key.ts";

const devices = z.enum(["auto", "cpu", "H100", "H200", "B200", "A100", "L40S"]);

export const run = section("Where a run is kept and how long it lasts.", {
  name: keyWithoutDefault(z.string().regex(/^\w[\w.-]*$/), "Name of the run, and of its directory.", {
    derived: "the recipe's file name",
  }),
  dir: key(z.string().min(1), "runs", "Folder that holds the run directories.", { path: "working directory" }),
  seed: key(z.int().min(0), 42, "Seed of data order, sampling and random initialisation."),
  steps: optionalKey(positiveInteger, "Train steps; null takes as many as data.epochs give.", { unit: "steps" }),
  deterministic: key(z.boolean(), false, "Makes reruns and resumes bit-identical on one machine; much slower."),
  max_restarts: key(z.int().min(0), 5, "Times in a row that a process that died is started again.", {
    unit: "restarts",
  }),
  device: key(devices, "auto", "Device that plan reckons with, and that the nodes of a cluster must have."),
});
