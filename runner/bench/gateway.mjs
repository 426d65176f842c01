// `npm run bench:gateway`: bundles the benchmark and starts it.
import { fastTemplates } from "../build.mjs";
import { bundleWith } from "./bundle.mjs";

await bundleWith({ plugins: [fastTemplates], sourcemap: true }, import.meta.url, "gateway", "gateway-side");
const { benchGateway } = await import("./dist/gateway.js");
await benchGateway(process.argv.slice(2));
