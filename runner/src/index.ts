/** What agents are written against, and the types of a recipe. Light, since every agent worker loads it. */
export {
  type Action,
  ChatAgent,
  type ChatContext,
  type ChatResult,
  Env,
  type Message,
  type ResetResult,
  type Row,
  type StepResult,
  type StopReason,
  type ToolCall,
} from "./agents/types.ts";
export { RunnerError } from "./errors.ts";
export type { Recipe } from "./recipe/schema.ts";
