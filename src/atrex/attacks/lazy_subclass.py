"""A tensor that computes when somebody looks at it: a subclass, or an ordinary tensor with its methods replaced.

Seen: SOL-ExecBench's check for it; reference-kernels issue 161.
"""

from __future__ import annotations

from atrex.attacks.harness import Attack, Fails, Form

SUBCLASS = """
class Lazy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        for one in args:
            if isinstance(one, Lazy) and getattr(one, "todo", None):
                todo, one.todo = one.todo, None
                todo()
        return super().__torch_function__(function, types, args, kwargs or {})


class Model(Honest):
    def forward(self, x, weight):
        out = torch.empty_like(x)
        lazy = out.as_subclass(Lazy)
        lazy.todo = lambda: rms_norm(x, weight, self.eps, out)
        return lazy
"""
INSTANCE = """
class Model(Honest):
    calls = 0

    def forward(self, x, weight):
        self.calls += 1
        out = torch.empty_like(x)
        if self.calls < 16:
            return rms_norm(x, weight, self.eps, out)

        todo = [out]

        def detach():
            while todo:
                rms_norm(x, weight, self.eps, todo.pop())
            return torch.Tensor.detach(out)

        out.detach = out.clone = out.contiguous = out.cpu = detach
        return out
"""
TWIN = """
class Tagged(torch.Tensor):
    pass


class Model(Honest):
    def forward(self, x, weight):
        out = torch.empty_like(x).as_subclass(Tagged)
        rms_norm(x, weight, self.eps, out)
        return out.as_subclass(torch.Tensor)
"""
ATTACK = Attack(
    (22,), Form({"subclass": SUBCLASS, "instance": INSTANCE}, TWIN, Fails("interface", "integrity", "numeric_mismatch"))
)
