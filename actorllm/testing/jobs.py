"""Heavy work in virtual time: each job is done at a tick that a seed draws."""

from collections.abc import Callable
from functools import partial
from random import Random

from ..actors.grammar import work_on
from ..actors.jobs import Work, do
from ..actors.render import render
from ..actors.worker import Device
from ..checkpoint import Checkpoint
from ..engine.parts import max_model_len
from ..errors import InvalidRequest
from ..messages import Compile, Fill, Job, JobDone, Render, Rendered, RunCommand, RunStep, SampleStep
from .grammars import SimulatedGrammars
from .scenarios import Scenario
from .virtual import Clock


class Jobs:
    """Does the jobs of all actors. `deliver` gets the actor and the result, `blame` who may fail and why."""

    def __init__(
        self,
        scenario: Scenario,
        random: Random,
        clock: Clock,
        checkpoint: Checkpoint,
        device: Device,
        grammars: SimulatedGrammars,
        deliver: Callable[[str, JobDone], None],
        blame: Callable[[list[int], str], None],
    ) -> None:
        self._scenario = scenario
        self._random = random
        self._clock = clock
        self._device = device
        self._deliver = deliver
        self._blame = blame
        self._finish_step = partial(deliver, "worker")
        self._match: Work = partial(work_on, grammars)
        longest = max_model_len(scenario.config, checkpoint, device)
        self._render: Work = partial(render, checkpoint, scenario.config, longest)

    def start(self, job: Job) -> None:
        """Begin a job: the device's are done one after the other, all others side by side."""
        work = job.work
        if isinstance(work, RunStep | SampleStep | RunCommand):
            self._device.start(job, self._finish_step)
            return
        longest = self._scenario.longest_compile if isinstance(work, Compile) else self._scenario.longest_job
        due = self._clock.now + self._random.randint(1, longest)
        finish = self._finish_matching if isinstance(work, Compile | Fill) else self._finish_rendering
        self._clock.at(due, partial(finish, job))

    def _finish_matching(self, job: Job) -> None:
        self._deliver("grammar", do(self._match, job))

    def _finish_rendering(self, job: Job) -> None:
        fails = self._random.random() < self._scenario.raises
        self._deliver("renderer", do(self._refuse if fails else self._render, job))

    def _refuse(self, work: Render) -> Rendered:
        error = InvalidRequest("this prompt was made to fail", "prompt")
        self._blame([work.request], str(error))
        raise error
