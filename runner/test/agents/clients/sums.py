"""An environment of verifiers: one sum, to be worked out with a tool."""

import verifiers.v1 as vf


class Calculator(vf.Toolset[vf.ToolsetConfig]):
    @vf.tool
    def add(self, a: float, b: float) -> str:
        """Adds two numbers."""
        return str(int(a + b))


class SumTaskConfig(vf.TaskConfig):
    tools: vf.ToolsetConfig = vf.ToolsetConfig()


class SumTask(vf.Task[vf.TaskData, vf.State, SumTaskConfig]):
    @classmethod
    def toolsets(cls, config):
        return [Calculator(config.tools)]

    @vf.reward(weight=1.0)
    async def says_five(self, trace: vf.Trace) -> float:
        return float(trace.nodes[-1].message.content == "The sum is 5.")


class SumConfig(vf.TasksetConfig):
    task: SumTaskConfig = SumTaskConfig()


class SumTaskset(vf.Taskset[SumTask, SumConfig]):
    def load(self):
        return [SumTask(vf.TaskData(idx=0, prompt="2 + 3?"), self.config.task)]


__all__ = ["SumTaskset"]

if __name__ == "__main__":
    Calculator.run()
