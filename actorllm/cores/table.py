"""The Scheduler's table: who is known, where each request stands, and how each one ends."""

from bisect import insort
from collections.abc import Iterable, Sequence
from typing import assert_never

from ..messages import Abort, Compile, Drop, Ending, Fault, GrammarReady, PromptLogprobs, Submit, unpack
from .admission import Admission
from .histogram import COUNTS, Histogram
from .logprobs import Candidates
from .plan import Said
from .policy import Policy
from .repetition import Circles
from .requests import Request, Status, WaitingQueue
from .timeouts import Timeouts

CRASHES = 2
"""After so many steps that crashed with it, a request must show alone that it is not the one."""


class Table:
    """Every open request stands in exactly one place: arrived, grammar, waiting, suspect, offered or running.

    `said` collects what the places have to say; `leaving` the rows that the workers are to forget.
    `preemptions` counts those of each request that has run and ended.
    """

    def __init__(self, policy: Policy, admission: Admission, eos_token_ids: frozenset[int]) -> None:
        self._policy = policy
        self._eos = eos_token_ids
        self._arrived: list[Request] = []
        self._arrivals = 0
        self.admission = admission
        self.timeouts = Timeouts()
        self.requests: dict[int, Request] = {}
        self.waiting = WaitingQueue(policy)
        self.running: list[Request] = []
        self.suspects: list[Request] = []
        self.leaving: list[int] = []
        self.said = Said()
        self.num_preempted = 0
        self.preemptions = Histogram(COUNTS)
        self.num_timeouts = 0

    def feed(self, message: Submit | Abort | GrammarReady) -> None:
        """Absorb what is said of a request."""
        match message:
            case Submit():
                self._submit(message)
            case Abort(request):
                if request in self.requests:
                    self._finish(self.requests[request], "abort")
            case GrammarReady(request, fault):
                if request in self.requests:
                    self._grammar_ready(self.requests[request], fault)
            case _:
                assert_never(message)

    def tick(self, now: float) -> bool:
        """Let those in that have come this turn, and end those that are late; whether any was."""
        arrived, self._arrived = self._arrived, []
        for request in arrived:
            if request.status is Status.ARRIVED:
                self._admit(request, now)
        before = self.num_timeouts
        while (late := self.timeouts.due(now)) is not None:
            self.num_timeouts += 1
            self._finish(late, "timeout")
        return self.num_timeouts > before

    def order(self, request: Request) -> tuple[float, ...]:
        """Where it stands among the running: the last is preempted first."""
        return (self._policy.level(self._policy.group(request)), *self._policy.key(request), request.arrival)

    def put_in_order(self) -> None:
        """Let the running stand in the policy's order; one that joins is put into its place."""
        if not self._policy.is_static:
            self.running.sort(key=self.order)

    def join(self, request: Request, num_cached: int) -> None:
        """It runs now, from behind what was found in the cache."""
        request.num_scheduled = request.num_computed = num_cached
        if not request.has_run:
            request.has_run = True
            request.num_cached = num_cached
            self.admission.begin(request)
            self._policy.serve(request, request.num_prompt)
        request.status = Status.RUNNING
        request.in_batch = True
        insort(self.running, request, key=self.order)

    def offer(self, seats: int, most_tokens: int) -> list[Request]:
        """Take the first of the waiting: no more than there are seats, and than so many tokens."""
        offered: list[Request] = []
        news = 0
        self.waiting.start()
        while len(offered) < seats and news < most_tokens:
            request = self.waiting.take()
            if request is None:
                break
            request.status = Status.OFFERED
            news += len(request.tokens) - request.num_told
            offered.append(request)
        return offered

    def offer_suspect(self) -> list[Request]:
        """The first request on probation, unless it runs already: nobody else does meanwhile."""
        suspect = self.suspects[0]
        if suspect.status is not Status.SUSPECT or not suspect.ready:
            return []
        suspect.status = Status.OFFERED
        return [suspect]

    def preempt(self, requests: Iterable[int]) -> None:
        """The pool has taken the blocks of these; some may have ended meanwhile."""
        for request in requests:
            if request in self.requests:
                self.send_back(self.requests[request])

    def refuse(self, requests: Iterable[int]) -> None:
        """The pool will never have room for these; some may have ended meanwhile."""
        fault = Fault("RequestFailed", "the KV cache is too small for this request alone")
        for request in requests:
            if request in self.requests:
                self.end(self.requests[request], "error", fault=fault)

    def send_back(self, request: Request) -> None:
        """It runs no more: its KV is forgotten, and it waits where it belongs."""
        self.num_preempted += 1
        request.num_preemptions += 1
        self.running.remove(request)
        self._restart(request)

    def wait_again(self, request: Request) -> None:
        """Put it among the suspects or into the queue."""
        if request in self.suspects:
            request.status = Status.SUSPECT
        else:
            request.status = Status.WAITING
            self.waiting.push(request)

    def restart_all(self) -> None:
        """Forget all KV and every step on its way; the workers have forgotten their rows already."""
        for request in self.requests.values():
            request.num_pending = request.steps_out = request.num_told = 0
        running, self.running = self.running, []
        for request in running:
            self._restart(request)
        self.leaving.clear()
        self.said.released.clear()

    def blame(self, requests: Sequence[Request], fault: Fault) -> None:
        """A step with these has crashed; some may have ended meanwhile. The first time may be an accident.

        Whoever was there at a second one is on probation, so that the next crash names the guilty one. Who
        was alone at the second is named already.
        """
        for request in requests:
            request.crash()
        for request in requests:
            if request.status is Status.ENDED or request.num_crashes < CRASHES:
                continue
            if len(requests) == 1:
                self.end(request, "error", fault=fault)
            else:
                self._suspect(request)

    def clear_the_stage(self) -> None:
        """Before a suspect runs: those that run wait until all suspects have done so alone."""
        for request in [each for each in self.running if each is not self.suspects[0]]:
            self.send_back(request)
            self.said.released.append(request)

    def accept(self, request: Request, token: int, logprobs: Candidates | None = None) -> None:
        """A token is final: keep it and tell it, and end the request if it is its last."""
        request.num_pending -= 1
        if request.num_cached and not request.num_output:
            self.said.hits.append((request.id, request.num_cached))
        request.tokens.append(token)
        self.said.tell(request.id, token, logprobs)
        if not self._policy.is_static:
            self._policy.serve(request, 1)
        if token in request.stops or len(request.tokens) >= request.max_len:
            self._end_with(request, token)
            return
        if request.circles is not None and request.circles.feed(token):
            self.end(request, "repetition")
            return
        if request.limits.grammar is not None:
            self.said.advanced.append((request.id, token))
        if self.suspects:
            self._acquit(request)

    def tell_prompts(self, found: Sequence[PromptLogprobs]) -> None:
        """Pass the log-probabilities of prompts on; those of requests that have ended are not heard."""
        for each in found:
            request = self.requests.get(each.request)
            if request is not None:
                assert each.first == max(1, request.num_prompt_told), "not the next tokens of the prompt"
                request.num_prompt_told = each.first + len(each.logprobs.counts) // 4
                self.said.prompt_logprobs.append(each)

    def share_seats(self) -> None:
        """Send back the last of the running, if its group has several seats and one waits whose has none."""
        seats: dict[str, int] = {}
        for request in self.running:
            group = self._policy.group(request)
            seats[group] = seats.get(group, 0) + 1
        victim = max(self.running, key=self.order)
        if seats[self._policy.group(victim)] > 1 and self.waiting.has_other_than(seats):
            self.send_back(victim)
            self.said.released.append(victim)

    def end(
        self, request: Request, reason: str, *, stop_token: int | None = None, fault: Fault | None = None
    ) -> None:
        """End it, wherever it stands, and say so to everyone who knows of it."""
        del self.requests[request.id]
        was, request.status = request.status, Status.ENDED
        if was is Status.RUNNING:
            self.running.remove(request)
        elif was is Status.WAITING:
            self.waiting.ended(request)
        if was is not Status.ARRIVED:
            self.admission.leave(request)
            self.timeouts.ended(request)
            if request.limits.grammar is not None and request.verdict is None:
                self.said.others.append(Drop(request.id))
        if request in self.suspects:
            self.suspects.remove(request)
        if request.in_batch:
            self.leaving.append(request.id)
        if request.num_told:
            self.said.released.append(request)
        if request.has_run:
            self.preemptions.observe(request.num_preemptions)
        self._policy.leave(request)
        self.said.endings.append(Ending(request.id, reason, stop_token, fault))

    def check(self) -> None:
        """Raise AssertionError when a request is in two places or in none."""
        stands: dict[Status, int] = dict.fromkeys(Status, 0)
        fresh = begun = 0
        for request in self.requests.values():
            request.check()
            stands[request.status] += 1
            fresh += not request.has_run and request.status is not Status.ARRIVED
            begun += request.has_run
        assert all(request.status is Status.RUNNING for request in self.running)
        assert stands[Status.RUNNING] == len(self.running), "the running are miscounted"
        assert stands[Status.WAITING] == len(self.waiting), "the waiting are miscounted"
        assert stands[Status.ENDED] == 0, "a request that has ended is still known"
        counted = self.admission.num_requests, self.admission.num_begun
        assert counted == (fresh, begun), "those that never ran are miscounted"
        self.timeouts.check()

    def _submit(self, message: Submit) -> None:
        tokens, limits = unpack(message.prompt), message.limits
        assert limits.max_tokens is not None, "the Renderer sets max_tokens"
        assert message.request not in self.requests, f"request {message.request} is submitted twice"
        request = Request(
            message.request,
            tokens,
            len(tokens),
            message.sampling,
            limits,
            len(tokens) + limits.max_tokens,
            self._arrivals,
            frozenset(limits.stop_token_ids).union(() if limits.ignore_eos else self._eos),
            message.terms,
            message.key,
            Status.ARRIVED,
            circles=None if limits.repetition is None else Circles(limits.repetition),
        )
        self._arrivals += 1
        self.requests[request.id] = request
        self._policy.arrive(request)
        self._arrived.append(request)

    def _admit(self, request: Request, now: float) -> None:
        fault = self.admission.refusal(request)
        if fault is not None:
            self.end(request, "error", fault=fault)
            return
        self.admission.enter(request)
        self.timeouts.add(request, now)
        if request.terms.timeout is not None:
            request.due = now + request.terms.timeout
        if request.limits.grammar is None:
            self.wait_again(request)
        else:
            request.status = Status.GRAMMAR
            self.said.others.append(Compile(request.id, request.limits.grammar))

    def _grammar_ready(self, request: Request, fault: Fault | None) -> None:
        """It can run, or it fails: at once, or when a token of its answer did not fit."""
        if request.verdict is not None:
            self.end(request, request.verdict)
        elif fault is not None:
            self.end(request, "error", fault=fault)
        else:
            self.wait_again(request)

    def _finish(self, request: Request, reason: str) -> None:
        """End it early; one whose grammar compiles ends when Grammar has answered, which it does at once."""
        if request.status is Status.GRAMMAR:
            if request.verdict is None:
                self.said.others.append(Drop(request.id))
            request.verdict = reason
        else:
            self.end(request, reason)

    def _end_with(self, request: Request, token: int) -> None:
        """End it, since this is its last token."""
        if token in self._eos and not request.limits.ignore_eos:
            self.end(request, "stop")
        elif token in request.stops:
            self.end(request, "stop", stop_token=token)
        else:
            self.end(request, "length")

    def _suspect(self, request: Request) -> None:
        """Put it on probation: it runs alone until it is a token past the point of the crash."""
        if request.status is Status.WAITING:
            self.waiting.remove(request)
            request.status = Status.SUSPECT
        if request not in self.suspects:
            self.suspects.append(request)

    def _acquit(self, request: Request) -> None:
        """One on probation that got past the point of the crash is a suspect no more."""
        if request in self.suspects and request.is_past_crash:
            self.suspects.remove(request)

    def _restart(self, request: Request) -> None:
        if request.in_batch:
            self.leaving.append(request.id)
        request.restart()
        self.wait_again(request)
