"""One named optimizer and what moves in step with it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ampx.training.masters import Masters
from ampx.training.optimizers import supports_device_gate
from ampx.training.schedule import Schedule


@dataclass(slots=True)
class Lane:
    """One named optimizer and what moves in step with it: its masters and its schedule."""

    name: str
    optimizer: Optimizer
    masters: Masters
    schedule: Schedule
    model_parameters: list[nn.Parameter]
    parameter_names: list[str]

    def gradients(self) -> list[Tensor]:
        """The gradients that the optimizer will see, still scaled; NoGradientError where there is none."""
        grads = [p.grad for p in self.masters.parameters if p.grad is not None]
        if not grads:
            raise NoGradientError(self.name, self.parameter_names)
        return grads

    @property
    def can_gate_on_device(self) -> bool:
        """Whether a step can be skipped without asking the host."""
        return supports_device_gate(self.optimizer) and not self.schedule.needs_host

    def drop_gradients(self) -> None:
        """Free the gradients of the model and of the masters."""
        for parameter in self.model_parameters:
            parameter.grad = None
        self.masters.drop_gradients()

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's state without its hyperparameters, which the config holds."""
        names = dict(enumerate(self._names_in_optimizer()))
        state = self.optimizer.state_dict()["state"]
        return {
            "optimizer": {names.get(index, index): values for index, values in state.items()},
            "masters": self.masters.state_dict(),
            "schedule": self.schedule.state_dict(),
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on from saved state, with the model already loaded."""
        own = self.optimizer.state_dict()
        indices = {name: index for index, name in enumerate(self._names_in_optimizer())}
        state = {indices.get(name, name): values for name, values in saved["optimizer"].items()}
        self.optimizer.load_state_dict({"state": state, "param_groups": own["param_groups"]})
        self.masters.load_state_dict(saved["masters"])
        self.schedule.load_state_dict(saved["schedule"])

    def _names_in_optimizer(self) -> list[str]:
        """Parameter names in the optimizer's own order, which its groups decide: weight decay splits them."""
        names = dict(zip(self.masters.parameters, self.parameter_names, strict=True))
        return [names[p] for group in self.optimizer.param_groups for p in group["params"]]


class NoGradientError(ValueError):
    """A backward pass reached no parameter of an optimizer."""

    def __init__(self, optimizer: str, names: Sequence[str]) -> None:
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        super().__init__(
            f"optimizer {optimizer!r}: no parameter received a gradient ({shown}); make the loss depend on "
            "them, check requires_grad, detach() and no_grad() in the model and the task"
        )
