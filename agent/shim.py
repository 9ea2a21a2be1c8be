"""What stays beside one engine: starts it, keeps its log in bounds, waits for it, writes down how it ended.

Run as ``python -I -S shim.py DIRECTORY`` with the standard library alone, so that it outlives every agent and every
upgrade. The engine runs only after ``state.json`` is on disk. File descriptors it is born with: 2 the log (append),
3 a lock that says it lives, 4 a pipe on which the agent hears one line: "ok", or why not. The engine's key comes in
the environment and is nowhere else.
"""

import ctypes
import errno
import json
import os
import pwd
import signal
import sys
import time
from typing import Any, NoReturn

LOG, LOCK, TELL = 2, 3, 4
PR_SET_CHILD_SUBREAPER = 36
LOOK_EVERY_S = 1.0  # at the size of the log
EXIT_ROOM = 512  # bytes kept free for exit.json, for the day the disk is full
WHY_MAX = 300  # bytes of them
NOT_STARTED = 127
NOT_EXECUTABLE = 126
FOR, KEY, CRASH = "LLMGW_SHIM", "LLMGW_ENGINE_KEY", "LLMGW_CRASH_AT"
RECORD = "LLMGW_SHIM_RECORD"  # of the spec, read from outside when the files are garbage
SIM_BOOT = "LLMGW_SIM_BOOT"  # as in proc.py
OURS = (FOR, KEY, CRASH, RECORD, SIM_BOOT)


def main(directory: str) -> int:
    settle_in(directory)
    try:
        with open("spec.json", encoding="utf-8") as file:
            spec = json.load(file)
        make_room_for_exit()
        child, go, why = fork_engine(spec)
        write_down(spec, child)
    except (OSError, ValueError, KeyError) as error:
        tell(f"{type(error).__name__}: {error}")
        return 1
    crash_at("shim.written")
    os.write(go, b"!")
    os.close(go)
    tell("ok")
    wait_for(child, spec, why)
    return 0


def settle_in(directory: str) -> None:
    """Whatever ends the agent passes by; descendants whose parent dies become our children."""
    os.chdir(directory)
    os.umask(0o077)
    for fd in (LOCK, TELL):
        os.set_inheritable(fd, False)
    os.closerange(TELL + 1, 1024)  # what a library of the agent's left open
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def crash_at(step: str) -> None:
    if os.environ.get(CRASH) == step:
        os._exit(70)


def tell(line: str) -> None:
    try:
        os.write(TELL, line.encode()[:4000])
    except BrokenPipeError:
        return  # the agent is gone; the next one reads state.json
    finally:
        os.close(TELL)


# --- the engine


def fork_engine(spec: dict[str, Any]) -> tuple[int, int, int]:
    """The child, held before its exec; the pipe that lets it go: a byte, or our death, which ends it; and the pipe
    on which it says why it could not be started, which ends with its exec."""
    ready, go = os.pipe()
    joined, join = os.pipe()
    why, say = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go)
        os.close(joined)
        become_engine(spec, ready, join, say)
    os.close(ready)
    os.close(join)
    os.close(say)
    if os.read(joined, 1) != b"!":  # a session and a leaf of its own, before its name is written down
        raise OSError("the engine's process could not enter its group; its log says why")
    os.close(joined)
    crash_at("shim.forked")
    return child, go, why


def become_engine(spec: dict[str, Any], ready: int, join: int, say: int) -> NoReturn:
    code, step, path = NOT_STARTED, "its process", ""
    try:
        os.setsid()
        if spec["leaf"]:
            put(os.path.join(spec["leaf"], "cgroup.procs"), "0")
        os.write(join, b"!")
        if os.read(ready, 1) != b"!":
            os._exit(NOT_STARTED)  # nobody wrote us down
        env = environment(spec)
        stop_favouring()
        os.dup2(LOG, 1)
        if spec["user"]:
            step = f"user {spec['user']!r}"
            become_user(spec["user"], env, spec["env"])
        step = f"cwd {spec['cwd']}"
        os.chdir(spec["cwd"] or "/")
        os.umask(0o022)
        restore_signals()
        step, path = spec["argv"][0], env.get("PATH", "")
        os.execvpe(spec["argv"][0], spec["argv"], env)
    except BaseException as error:
        if isinstance(error, PermissionError) or getattr(error, "errno", None) == errno.ENOEXEC:
            code = NOT_EXECUTABLE
        reason = why_not(error, step, spec["argv"][0], path)
        os.write(LOG, f"llmgw: {reason}\n".encode())
        os.write(say, reason.encode())
    os._exit(code)


def why_not(error: BaseException, step: str, program: str, path: str) -> str:
    """In the engine's own process, as its user: what it can't see is not there for it."""
    said = getattr(error, "strerror", None) or (str(error) if not isinstance(error, KeyError) else "unknown")
    if step == program and isinstance(error, OSError):
        said += hint(error, program, path)
    return f"can't be started: {step}: {said}"


def hint(error: OSError, program: str, path: str) -> str:
    if "/" not in program:
        return f" in PATH ({path}); name the program by its whole path"
    if os.path.isdir(program):
        return ": it is a folder"
    if isinstance(error, FileNotFoundError) and os.path.exists(program):
        return ": the file is there, what its first line (#!) or its loader names is not"
    if isinstance(error, PermissionError) and os.path.exists(program) and not os.access(program, os.X_OK):
        return ": it is not executable"
    return ""


def environment(spec: dict[str, Any]) -> dict[str, str]:
    env = {name: value for name, value in os.environ.items() if name not in OURS}
    env.update(spec["env"])
    if spec["key_env"] and KEY in os.environ:
        env[spec["key_env"]] = os.environ[KEY]
    env["LLMGW_INSTANCE"] = spec["id"]
    env["LLMGW_AGENT"] = os.environ["LLMGW_AGENT"]
    # setproctitle writes over the environment the kernel shows, and our mark with it.
    env["SPT_NOENV"] = "1"
    return env


def stop_favouring() -> None:
    """The agent is spared when memory runs out; its engines are not."""
    with open("/proc/self/oom_score_adj", encoding="ascii") as file:
        score = int(file.read())
    if score < 0:
        put("/proc/self/oom_score_adj", "0")


def become_user(name: str, env: dict[str, str], given: dict[str, str]) -> None:
    user = pwd.getpwnam(name)  # KeyError: unknown
    if os.geteuid() == user.pw_uid:
        return
    os.initgroups(name, user.pw_gid)
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)
    env.update({"HOME": user.pw_dir, "USER": name, "LOGNAME": name} | given)


def restore_signals() -> None:
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())


# --- what is written down


def write_down(spec: dict[str, Any], child: int) -> None:
    state = {
        "boot_id": boot_id(),
        "shim_pid": os.getpid(),
        "shim_start": start_of(os.getpid()),
        "pid": child,
        "start": start_of(child),
        "pgid": child,
        "ports": spec["ports"],
        "spec_hash": spec["hash"],
        "host": spec["host"],
        "leaf": spec["leaf"],
        "at": time.time(),
    }
    fd = os.open("state.json.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    finish(fd, "state.json", state)


def make_room_for_exit() -> None:
    fd = os.open("exit.json.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        os.posix_fallocate(fd, 0, EXIT_ROOM)
    finally:
        os.close(fd)


def write_exit(status: int, spec: dict[str, Any], why: str) -> None:
    how: dict[str, Any] = {"code": None, "signal": None, "oom": False, "at": time.time()}
    if why:
        how["why"] = why
    if os.WIFSIGNALED(status):
        how["signal"] = os.WTERMSIG(status)
        how["oom"] = how["signal"] == signal.SIGKILL and oom_kills(spec["leaf"]) > 0
    else:
        how["code"] = os.WEXITSTATUS(status)
    # Not truncated first: the room that was kept is used.
    finish(os.open("exit.json.new", os.O_WRONLY | os.O_CREAT, 0o600), "exit.json", how)


def finish(fd: int, name: str, value: dict[str, Any]) -> None:
    text = json.dumps(value).encode()
    try:
        if os.write(fd, text) != len(text):
            raise OSError(f"{name} could not be written whole")
        os.ftruncate(fd, len(text))
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(name + ".new", name)
    folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def oom_kills(leaf: str) -> int:
    if not leaf:
        return 0
    try:
        with open(os.path.join(leaf, "memory.events"), encoding="ascii") as file:
            return sum(int(line.split()[1]) for line in file if line.startswith("oom_kill "))
    except OSError:
        return 0  # without a memory controller nobody counts


def boot_id() -> str:
    if os.environ.get(SIM_BOOT):
        return os.environ[SIM_BOOT]
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def start_of(pid: int) -> int:
    """In clock ticks since the boot: with the boot's id it names a process for ever."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[19])


def put(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


# --- waiting


def wait_for(child: int, spec: dict[str, Any], why: int) -> None:
    """Until nothing that came of the engine is left: while we live, all of it can be found below us."""
    status: int | None = None
    while True:
        try:
            pid, ended = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == child:
            status = ended
            report(status, spec, heard(why))
        elif pid == 0:
            signal.sigtimedwait({signal.SIGCHLD}, LOOK_EVERY_S)
            keep_in_bounds(spec["log_max"])


def heard(why: int) -> str:
    """Why it could not be started; empty: it was."""
    os.set_blocking(why, False)  # the engine's own children can't hold it, yet nothing here may hang
    try:
        said = os.read(why, 4096).decode("utf-8", "replace")
    except BlockingIOError:
        return ""
    while len(json.dumps(said)) > WHY_MAX:
        said = said[: len(said) * 3 // 4]
    return said


def report(status: int, spec: dict[str, Any], why: str) -> None:
    try:
        write_exit(status, spec, why)
    except OSError as error:
        os.write(LOG, f"llmgw: the engine's exit can't be written down: {error}\n".encode())


def keep_in_bounds(most: int) -> None:
    """The engine holds the file, so it is copied and cut; lines written in between are lost."""
    size = os.fstat(LOG).st_size
    if size <= most:
        return
    try:
        copy_log(size)
    except OSError:
        pass_without_copy()
    os.ftruncate(LOG, 0)


def copy_log(size: int) -> None:
    source = os.open("out.log", os.O_RDONLY)
    target = os.open("out.log.1", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        offset = 0
        while offset < size:
            sent = os.sendfile(target, source, offset, size - offset)
            if sent == 0:
                return
            offset += sent
    finally:
        os.close(source)
        os.close(target)


def pass_without_copy() -> None:
    """No room for the old lines: the new ones matter more."""
    try:
        os.unlink("out.log.1")
    except OSError:
        return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
