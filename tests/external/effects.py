"""Effects that tests begin inside scripts."""

from chaos.in_process.base import InProcessFault


class Look(InProcessFault):
    """Says what there is, and makes the first parameter unmistakable."""

    def begin(self, step, phase):
        parameters = self.subject.tensors("parameters")
        next(iter(parameters.values())).fill_(self.arguments["value"])
        return {
            "modules": {name: type(module).__name__ for name, module in self.subject.modules().items()},
            "parameters": {name: list(tensor.shape) for name, tensor in parameters.items()},
            "gradients": sorted(self.subject.tensors("gradients")),
            "optimizer": sorted(self.subject.tensors("optimizer")),
        }
