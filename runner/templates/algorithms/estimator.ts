import { type AdvantageEstimator, centred, perGroup } from "molt-runner";

/** NAME: reward minus the group's mean. Say here what yours does, as a formula, and where it is from. */
const FUNCTION: AdvantageEstimator = (rollouts) => perGroup(rollouts, (rewards) => centred(rewards));

export default FUNCTION;
