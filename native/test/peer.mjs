// One rank of a process group, for process-group.process.test.ts. Its argument: options and a script of steps, as JSON.
import { ProcessGroup } from "molt-native";

const { options, steps } = JSON.parse(process.argv[2]);
const group = await ProcessGroup.create(options);
for (const step of steps) {
  if (step.die) process.kill(process.pid, "SIGKILL");
  else if (step.barrier) await group.barrier();
  else console.log(JSON.stringify(Array.from(await group.allReduce(Float64Array.from(step.values), step.op))));
}
group.close();
