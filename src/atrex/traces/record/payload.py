"""What runs inside the process that is recorded: torch.profiler over a bounded window, started and stopped there.

This file is sent as text, with a call of `begin` behind it, and imports nothing of Atrex: it has to run on whatever
Python and torch serve there. It never raises into the program, takes no lock that the interrupted code may hold (so no
`threading`, `logging` or buffered output), changes nothing that it does not put back, and gives up when the recorder's
lock on the folder is gone.
"""

import _thread
import atexit
import contextlib
import fcntl
import json
import os
import sys
import time

MARK = "_atrex_recording"  # in sys.modules while a recording runs
_TICK = 0.02


class Recording:
    """One recording. `folder` is shared with the recorder: `lock`, `status.json` and, at the end, `trace.json`."""

    def __init__(self, folder, seconds, steps, stack, name="trace.json", status="status.json"):
        self.folder, self.seconds, self.steps, self.stack = folder, seconds, steps, stack
        self.trace, self.status_file = os.path.join(folder, name), os.path.join(folder, status)
        self.profiler = self.marks = None
        self.began = self.ended = 0.0
        self.counted, self.started, self.stopping, self.finished, self.all_threads = 0, False, False, False, False
        self.notes, self.pid = [], os.getpid()

    def abandoned(self):
        """Whether the recorder is gone: nobody holds its lock."""
        try:
            handle = os.open(os.path.join(self.folder, "lock"), os.O_RDONLY)
        except OSError:
            return True
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return False
        finally:
            os.close(handle)
        return True

    def say(self, state, **more):
        """Leave word for the recorder, all of it or nothing."""
        document = {"state": state, "pid": os.getpid(), "steps": self.counted, "notes": self.notes}
        document.update(more)
        handle = os.open(self.status_file + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            os.write(handle, json.dumps(document).encode())
        finally:
            os.close(handle)
        os.replace(self.status_file + ".new", self.status_file)

    def refused(self):
        """Why nothing can be recorded here, or None."""
        threading = sys.modules.get("threading")
        if threading is not None and not threading.main_thread().is_alive():
            return "it is ending"
        if MARK in sys.modules:
            return "another recording of it is under way"
        torch = sys.modules.get("torch")
        if torch is None:
            return "it has not imported torch"
        if getattr(getattr(torch, "__spec__", None), "_initializing", False) or not hasattr(torch, "profiler"):
            return "it is still importing torch"
        if torch.autograd._profiler_enabled() or getattr(torch.autograd.profiler, "_is_profiler_enabled", False):
            return "a profiler already runs in it"
        if capturing():
            return "it is capturing a CUDA graph right now: try again"
        try:
            import ctypes

            self.queue = ctypes.pythonapi.Py_AddPendingCall
            self.callback = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self.stop)
        except (ImportError, AttributeError):
            return "its Python has no ctypes, with which the end of the recording is set"
        return None

    def start(self):
        """In the main thread, at a safe point of the interpreter."""
        if self.abandoned():
            return
        reason = self.refused()
        if reason is not None:
            self.say("refused", reason=reason)
            return
        torch = sys.modules["torch"]
        sys.modules[MARK] = type(sys)(MARK)
        try:
            activities = [torch.profiler.ProfilerActivity.CPU]
            device = torch.cuda.is_initialized()
            if device:
                activities.append(torch.profiler.ProfilerActivity.CUDA)
            self.profiler = torch.profiler.profile(
                activities=activities, record_shapes=True, with_stack=self.stack, **self.every_thread(torch)
            )
            self.started = True  # a start that fails half-way is to be stopped too
            self.profiler.start()
            self.began = time.monotonic()
            self.marks = Marks(self, torch)
            self.marks.place()
            self.say("recording", device=device, all_threads=self.all_threads)
            atexit.register(self.cut_short)
            _thread.start_new_thread(self.watch, ())
        except BaseException:
            with contextlib.suppress(Exception):
                self.close_profiler()
            self.finish()
            raise

    def every_thread(self, torch):
        try:
            config = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
        except (AttributeError, TypeError):
            self.notes.append("this torch records operators of the main thread alone")
            return {}
        self.all_threads = True
        return {"experimental_config": config}

    def watch(self):
        """In a thread of its own: ends the window, by asking the main thread to stop, even if the recorder has died."""
        try:
            while not self.finished:
                time.sleep(_TICK)
                late = time.monotonic() - self.began >= self.seconds
                if not self.stopping and (late or self.abandoned()):
                    self.end()
        except BaseException:  # the interpreter is being taken down
            pass

    def end(self):
        """Let the main thread stop the profiler at its next safe point."""
        if not self.stopping:
            self.stopping = self.queue(self.callback, None) == 0

    def stop(self, _=None):
        """In the main thread, as a pending call."""
        if capturing():  # stopping waits for the device, which would break the capture
            self.stopping = False
        else:
            guarded(self, self.hand_over)
        return 0

    def hand_over(self):
        if self.finished:
            return
        try:
            self.ended = time.monotonic()
            if not self.abandoned():
                self.say("stopping")
            self.close_profiler()
            if not self.abandoned():
                self.profiler.export_chrome_trace(self.trace + ".part.json")
                os.replace(self.trace + ".part.json", self.trace)
                self.say("done", seconds=self.ended - self.began, writing=time.monotonic() - self.ended)
        finally:
            self.finish()
            if self.abandoned():
                self.clear()

    def close_profiler(self):
        """Stop and put back, whatever happens in between."""
        try:
            if self.marks is not None:
                self.marks.remove()
        finally:
            if self.started:
                self.started = False
                try:
                    self.profiler.stop()
                except BaseException:  # a signal handler of the program may have raised in the middle of it
                    with contextlib.suppress(BaseException):
                        self.profiler.stop()
                    raise

    def cut_short(self):
        """The program ends within the window: what there is of it is handed over."""
        if not self.finished and os.getpid() == self.pid:
            self.notes.append("the program ended within the window")
            guarded(self, self.hand_over)

    def finish(self):
        self.finished = True
        atexit.unregister(self.cut_short)
        self.profiler = self.marks = None
        sys.modules.pop(MARK, None)

    def clear(self):
        """Nobody waits for the trace: leave nothing of this recording behind, but what the recorder has told of."""
        if os.path.exists(os.path.join(self.folder, "kept")):
            return
        others = (os.path.join(self.folder, name) for name in ("lock", "begin.py"))
        for path in (self.trace, self.trace + ".part.json", self.status_file, self.status_file + ".new", *others):
            with contextlib.suppress(OSError):
                os.unlink(path)
        with contextlib.suppress(OSError):
            os.rmdir(self.folder)


def capturing():
    """Whether this thread is capturing a CUDA or HIP graph."""
    cuda = sys.modules["torch"].cuda
    try:
        return cuda.is_initialized() and cuda.is_current_stream_capturing()
    except Exception:
        return False


def guarded(recording, body):
    """Run `body`; what it raises becomes a word to the recorder.

    An exit or an interrupt that a signal handler of the program raised in the middle of it is raised again, in the
    program, once we are gone.
    """
    try:
        body()
    except BaseException as error:
        with contextlib.suppress(BaseException):
            recording.say("failed", reason=f"{type(error).__name__}: {error}")
        if not isinstance(error, Exception):
            import ctypes

            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(_thread.get_ident()), ctypes.py_object(type(error))
            )


class Marks:
    """Ranges around the steps of the model, named as engines name theirs, with what is in the batch.

    A step is a call of the engine's model runner, else a call of a module that no other module called. The functions
    are wrapped for the window, on their classes, and only looked at. Programs that have compiled whole modules are left
    alone: wrapping what a compiler has guarded would make it compile again.
    """

    ENGINES = (
        ("vllm.v1.worker.gpu_model_runner", "GPUModelRunner", "execute_model", "vllm_step"),
        ("vllm.v1.worker.gpu.model_runner", "GPUModelRunner", "execute_model", "vllm_step"),
        ("sglang.srt.model_executor.model_runner", "ModelRunner", "forward", "sglang_step"),
    )

    def __init__(self, recording, torch):
        self.recording, self.torch, self.placed = recording, torch, []
        self.inside, self.settled = set(), set()

    def place(self):
        for module, owner, method, describe in self.ENGINES:
            found = getattr(sys.modules.get(module), owner, None)
            if found is not None and method in vars(found):
                self.wrap(found, method, globals()[describe])
        if self.placed:
            return
        dynamo = sys.modules.get("torch._dynamo.utils")
        if dynamo is not None and sum(dynamo.counters["frames"].values()):
            self.recording.notes.append("steps are not marked: the program compiles with torch.compile")
            return
        module = self.torch.nn.Module
        self.codes = {module._wrapped_call_impl.__code__, module._call_impl.__code__}
        self.wrap(module, "__call__", module_step, nested=True)

    def wrap(self, owner, method, describe, nested=False):
        original, marks = vars(owner)[method], self
        record, identity = self.torch.autograd.profiler.record_function, _thread.get_ident
        compiling = getattr(getattr(self.torch, "compiler", None), "is_compiling", lambda: False)

        def step(*args, **kwargs):
            if compiling():
                return original(*args, **kwargs)
            me = identity()
            if marks.recording.stopping or me in marks.inside or (nested and not marks.outermost(me)):
                return original(*args, **kwargs)
            mark = None
            try:
                mark = record(describe(args, kwargs, marks.recording.counted))
                mark.__enter__()
            except Exception:
                pass
            marks.inside.add(me)
            try:
                return original(*args, **kwargs)
            finally:
                marks.inside.discard(me)
                if mark is not None:
                    mark.__exit__(None, None, None)
                marks.count()

        step.__wrapped__ = original
        self.placed.append((owner, method, original, step))
        setattr(owner, method, step)

    def outermost(self, me):
        """Whether no module's call is on this thread's stack, for a thread that was in one when we came."""
        if me in self.settled:
            return True
        frame = sys._getframe(2)
        while frame is not None:
            if frame.f_code in self.codes:
                return False
            frame = frame.f_back
        self.settled.add(me)
        return True

    def count(self):
        self.recording.counted += 1
        if self.recording.steps and self.recording.counted >= self.recording.steps:
            self.recording.end()

    def remove(self):
        for owner, method, original, step in self.placed:
            if vars(owner).get(method) is step:
                setattr(owner, method, original)
        self.placed = []


def vllm_step(args, kwargs, number):
    """vLLM's own name of a step: requests and query tokens, of prompts and of generation."""
    batch = kwargs.get("scheduler_output") or args[1]
    new = {request.req_id for request in batch.scheduled_new_reqs}
    context = getattr(batch.scheduled_cached_reqs, "is_context_phase", lambda request: False)
    counts = {True: [0, 0], False: [0, 0]}
    for request, tokens in batch.num_scheduled_tokens.items():
        of = counts[bool(request in new or context(request))]
        of[0] += 1
        of[1] += tokens
    (requests, tokens), (others, generated) = counts[True], counts[False]
    return f"execute_context_{requests}({tokens})_generation_{others}({generated})"


def sglang_step(args, kwargs, number):
    """SGLang's own name of a step."""
    batch = kwargs.get("forward_batch") or args[1]
    mode, tokens = batch.forward_mode.name, getattr(batch.input_ids, "shape", [0])[0]
    if mode == "DECODE":
        return f"step[DECODE bs={batch.batch_size}]"
    return f"step[{mode} bs={batch.batch_size} toks={tokens}]"


def module_step(args, kwargs, number):
    """For a language model of transformers' interface, requests and tokens as vLLM names them; else a number.

    One query token a request is generation, more are prompts. Keys are counted by a two-dimensional mask, padding
    included.
    """
    ids = kwargs.get("input_ids")
    if ids is None and len(args) > 1 and "int" in str(getattr(args[1], "dtype", "")):
        ids = args[1]
    if ids is None:
        ids = kwargs.get("inputs_embeds")
    if getattr(ids, "ndim", 0) not in (2, 3):
        return f"step {number}: {type(args[0]).__name__}"
    requests, length, mask = int(ids.shape[0]), int(ids.shape[1]), kwargs.get("attention_mask")
    keys = int(mask.shape[1]) if getattr(mask, "ndim", 0) == 2 else None
    tokens = requests * length
    if keys is None:
        here, none, total = tokens, 0, ""
    else:
        here = f"sq{tokens}sk{requests * keys}sqsq{tokens * length}sqsk{tokens * keys}"
        none, total = "sq0sk0sqsq0sqsk0", f"{tokens}_"
    if length == 1:
        return f"execute_{total}context_0({none})_generation_{requests}({here})"
    return f"execute_{total}context_{requests}({here})_generation_0({none})"


def begin(folder, **options):
    recording = Recording(folder, **options)
    guarded(recording, recording.start)


def launch(folder, delay=0.0, **options):
    """In a program that the recorder started: wait for torch (and its device, where there is one), then begin.

    Forked children wait on their own; every process that uses torch records itself.
    """
    _thread.start_new_thread(wait, (folder, delay, options))
    os.register_at_fork(after_in_child=lambda: _thread.start_new_thread(wait, (folder, delay, options)))


def wait(folder, delay, options):
    pid, began = os.getpid(), None
    device = any(os.path.exists(path) for path in ("/dev/nvidiactl", "/dev/kfd"))
    while os.getpid() == pid and os.path.exists(os.path.join(folder, "lock")):
        time.sleep(_TICK)
        torch = sys.modules.get("torch")
        if torch is None or getattr(torch.__spec__, "_initializing", False) or not hasattr(torch, "profiler"):
            continue
        if device and not torch.cuda.is_initialized():
            continue
        began = time.monotonic() if began is None else began
        if time.monotonic() - began >= delay:
            break
    else:
        return
    import ctypes

    recording = Recording(folder, name=f"trace-{pid}.json", status=f"status-{pid}.json", **options)

    def start(_):
        guarded(recording, recording.start)
        return 0

    callback = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(start)
    while ctypes.pythonapi.Py_AddPendingCall(callback, None) != 0:
        time.sleep(_TICK)
    while os.getpid() == pid:  # the callback lives as long as this frame
        time.sleep(1.0)
