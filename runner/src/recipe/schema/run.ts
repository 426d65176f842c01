import { z } from "zod";
import { key, keyWithoutDefault, plannedKey, positiveInteger, section } from "./key.ts";

export const run = section("Where a run is kept and how long it lasts.", {
  name: keyWithoutDefault(z.string().regex(/^\w[\w.-]*$/), {
    description: "Name of the run; its directory is named after it (letters, digits, '_', then '.' and '-' too).",
    derived: "the recipe's file name",
  }),
  dir: key(z.string().min(1), "runs", {
    description: "Folder that holds the run directories.",
    path: "working directory",
  }),
  seed: key(z.int().min(0), 42, { description: "Seed of data order, sampling and random initialisation." }),
  steps: key(positiveInteger.nullable(), null, {
    description: "Train steps, the data repeated as often as they need; null takes as many as data.epochs give.",
    unit: "steps",
  }),
  device: plannedKey(z.enum(["auto", "cpu", "H100", "H200", "B200", "A100", "L40S"]), "auto", {
    description: "The device that plan reckons with; auto is this machine's.",
  }),
});
