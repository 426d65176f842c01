// `npm run setup`: everything from a fresh clone. No dependencies: it runs before npm's packages are there.
import { parseArgs } from "node:util";
import { SetupError } from "./locate.mjs";
import { removeCaches, setup } from "./setup.mjs";

const options = {
  tests: { type: "boolean", default: false },
  "no-native": { type: "boolean", default: false },
  remove: { type: "boolean", default: false },
};

try {
  const { values } = parseArgs({ options });
  if (values.remove) removeCaches();
  else await setup({ native: !values["no-native"], tests: values.tests });
} catch (error) {
  const wrongArguments = error.code?.startsWith("ERR_PARSE_ARGS");
  if (!(error instanceof SetupError) && !wrongArguments) throw error;
  console.error(`set-up: ${error.message}`);
  process.exit(wrongArguments ? 2 : 1);
}
