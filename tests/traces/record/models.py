"""A program with torch to record.

    python models.py NAME FOLDER

It does what NAME says again and again, or what the file `turn` in the folder names, until the file `stop` is there.
"""

import json
import os
import sys
import threading
import time
import types


def language_model():
    """A model with transformers' interface: prompts of 7 tokens, then decode steps, one request after the other."""
    import torch

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(32, 32)

        def forward(self, x):
            return torch.relu(self.linear(x))

    class Tiny(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = torch.nn.Embedding(100, 32)
            self.layers = torch.nn.ModuleList([Layer(), Layer()])

        def forward(self, input_ids=None, attention_mask=None):
            x = self.embedding(input_ids)
            for layer in self.layers:
                x = layer(x)
            return x

    model = Tiny()

    def turn():
        for past in range(5):
            tokens = 7 if past == 0 else 1
            model(
                input_ids=torch.ones(3, tokens, dtype=torch.long),
                attention_mask=torch.ones(3, 7 + past, dtype=torch.long),
            )

    return turn


def product():
    import torch

    a = torch.arange(1024.0).reshape(32, 32) / 99
    expected = (a @ a).sum()

    def turn():
        assert torch.equal((a @ a).sum(), expected)
        time.sleep(0.0005)  # a trace of a size that suits a test

    return turn


def idle():
    return lambda: time.sleep(0.001)


def worker_thread():
    """All operators run in another thread than the main one."""
    turn = product()

    def some():
        for _ in range(10):
            turn()

    def wait():
        thread = threading.Thread(target=some)
        thread.start()
        thread.join()

    return wait


def in_native_code():
    """The main thread waits in C for what comes through the pipe `wait`, once the folder has a file `blocked`."""
    pipe, blocked = (os.path.join(sys.argv[2], name) for name in ("wait", "blocked"))
    os.mkfifo(pipe)
    handle = os.open(pipe, os.O_RDWR)

    def turn():
        if os.path.exists(blocked):
            os.unlink(blocked)
            os.read(handle, 1)
        time.sleep(0.001)

    return turn


def compiled():
    import torch

    model = torch.compile(torch.nn.Linear(4, 4), backend="eager")
    return lambda: model(torch.ones(2, 4))


def vllm():
    """A module where vLLM has its model runner, with the fields of a scheduler's output that matter."""
    import torch

    class GPUModelRunner:
        def execute_model(self, scheduler_output):
            return torch.ones(4) + 1

    module = types.ModuleType("vllm.v1.worker.gpu_model_runner")
    module.GPUModelRunner = GPUModelRunner
    sys.modules[module.__name__] = module
    cached = types.SimpleNamespace(is_context_phase=lambda request: request == "chunked")
    batch = types.SimpleNamespace(
        scheduled_new_reqs=[types.SimpleNamespace(req_id="new")],
        scheduled_cached_reqs=cached,
        num_scheduled_tokens={"new": 100, "chunked": 28, "old": 1, "older": 1},
    )
    runner = GPUModelRunner()
    return lambda: runner.execute_model(batch)


def sglang():
    import torch

    class ModelRunner:
        def forward(self, forward_batch):
            return torch.ones(4) + 1

    module = types.ModuleType("sglang.srt.model_executor.model_runner")
    module.ModelRunner = ModelRunner
    sys.modules[module.__name__] = module
    runner = ModelRunner()

    def turn():
        for mode, tokens in (("EXTEND", 64), ("DECODE", 16)):
            runner.forward(
                types.SimpleNamespace(
                    forward_mode=types.SimpleNamespace(name=mode), batch_size=16, input_ids=torch.ones(tokens)
                )
            )

    return turn


def stopped():
    return os.path.exists(os.path.join(sys.argv[2], "stop"))


def chosen():
    try:
        with open(os.path.join(sys.argv[2], "turn")) as file:
            return file.read() or sys.argv[1]
    except FileNotFoundError:
        return sys.argv[1]


def main():
    import torch

    name, turns = "", 0
    before = sorted(globals())
    while not stopped():
        if (asked := chosen()) != name:
            for module in [m for m in sys.modules if m.startswith(("vllm", "sglang"))]:
                del sys.modules[module]
            name, turn = asked, globals()[asked]()
            turn()
            open(os.path.join(sys.argv[2], "ready"), "w").close()
        turn()
        turns += 1
    changed = [n for n in sorted(globals()) if n not in (*before, "__warningregistry__")]
    if torch.nn.Module.__call__ is not torch.nn.Module._wrapped_call_impl:
        changed.append("torch.nn.Module.__call__")
    changed += [n for n in sys.modules if n.startswith("_atrex")]
    print(json.dumps({"turns": turns, "changed": changed}), flush=True)


if __name__ == "__main__":
    main()
