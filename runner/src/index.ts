/** What agents are written against, and the types of a recipe. Light, since every agent worker loads it. */
export { type JudgeOptions, judge } from "./agents/graders/judge.ts";
export { mathAnswer } from "./agents/graders/math.ts";
export { exactMatch, jsonSchemaMatch, regexMatch } from "./agents/graders/text.ts";
export { pythonTool, shellTool, type Tool, type ToolLimits } from "./agents/tools/tools.ts";
export {
  type Action,
  ChatAgent,
  type ChatContext,
  type ChatResult,
  Env,
  type GradedRollout,
  type Grader,
  type Message,
  type ResetResult,
  type Row,
  type StepResult,
  type StopReason,
  type ToolCall,
} from "./agents/types.ts";
export * from "./algorithms/advantages/estimator.ts";
export type {
  LossSpec,
  PolicyLoss,
  PolicyLossInput,
  PolicyLossOutput,
} from "./algorithms/losses/policy-loss.ts";
export { RunnerError } from "./errors.ts";
export type { Recipe } from "./recipe/schema.ts";
