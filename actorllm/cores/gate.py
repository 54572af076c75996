"""The gate: whether steps are planned, and the command that waits for those on their way."""

from dataclasses import dataclass

from ..messages import Command, CommandDone, Fault


@dataclass(frozen=True, slots=True)
class Begun:
    """What a command needs: an epoch's end, a reset of the prefix cache, a step of the workers.

    `done` is its end, if it needs nothing.
    """

    command: Command
    ends_epoch: bool = False
    resets_cache: bool = False
    runs: bool = False
    done: CommandDone | None = None


class Gate:
    """One command at a time. Whatever it is, it begins when no step is on its way, and holds planning back
    until it is done.

    A pause lasts until the next resume; an engine that is asleep plans nothing until it is woken.
    """

    def __init__(self) -> None:
        self.is_paused = self.is_asleep = False
        self._command: Command | None = None
        self._awaits = 0

    @property
    def is_open(self) -> bool:
        """Whether steps may be planned."""
        return not (self.is_paused or self.is_asleep or self._command is not None)

    @property
    def idle(self) -> bool:
        """Whether no command is open."""
        return self._command is None

    @property
    def is_waiting(self) -> bool:
        """Whether the command has begun and answers are missing."""
        return self._awaits > 0

    @property
    def state(self) -> str:
        """For statistics: running, paused or asleep."""
        return "asleep" if self.is_asleep else "paused" if self.is_paused else "running"

    def feed(self, command: Command) -> None:
        """Take in a command."""
        assert self._command is None, f"command {command.id} while command {self._command} is open"
        self._command = command

    def begin(self) -> Begun | None:
        """Begin the command, if there is one that has not begun; no step is on its way."""
        command = self._command
        if command is None or self._awaits:
            return None
        match command.action:
            case "pause" | "resume":
                return Begun(command, done=self.finish())
            case "sleep" | "wake_up" if self.is_asleep == (command.action == "sleep"):
                return Begun(command, done=self.finish())
            case "reset_prefix_cache":
                begun = Begun(command, resets_cache=True)
            case "sleep":
                begun = Begun(command, ends_epoch=True, runs=True)
            case "wake_up":
                begun = Begun(command, runs=True)
            case _ if self.is_asleep:
                text = f"{command.action} needs the device, and the engine is asleep; wake it up first"
                return Begun(command, done=self.finish(Fault("UsageError", text)))
            case _:
                begun = Begun(command, runs=True)
        self._awaits = begun.ends_epoch + begun.resets_cache + begun.runs
        return begun

    def answered(self, fault: Fault | None = None) -> CommandDone | None:
        """One of the answers is there; the end of the command if it was the last, or bad."""
        self._awaits -= 1
        return self.finish(fault) if fault is not None or not self._awaits else None

    def finish(self, fault: Fault | None = None) -> CommandDone:
        """The command is done, or has failed; after a sleep that failed only waking up is sure to help."""
        command, self._command, self._awaits = self._command, None, 0
        assert command is not None, "no command is open"
        if fault is None and command.action in ("pause", "resume"):
            self.is_paused = command.action == "pause"
        if command.action == "sleep" or (command.action == "wake_up" and fault is None):
            self.is_asleep = command.action == "sleep"
        return CommandDone(command.id, fault)
