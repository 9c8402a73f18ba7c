"""The messages that go into a turn at work: before the next request to a model, or in the place of the one that runs.

A message waits here until a goal that it is for is about to ask its model; then it is *delivered* to every goal that
asks models now, by one decision of the writer. Whoever is about to ask waits until that is durable, so a model never
has what the log has not. A stop, a withdrawal or the turn's end that the writer met first makes the delivery void: the
row is the truth, and the message then has the fate that it has there.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from core.agent.told import Told
from core.cancellation import Cause, CauseWord, Verdict
from core.errors import ServerError, StoreError
from core.gates import pause_at
from core.plan.goal import Goal
from core.provider.model_call import ModelCall
from core.session.delivery import Letter, deliver

if TYPE_CHECKING:
    from core.session.turn import Turn

#: So many answers of one goal are cut off, one after the other; after that a redirect waits like a steer.
MAX_CUTS: Final = 3

#: Seconds that the end of a turn waits for deliveries that are being written.
SETTLE_S: Final = 15.0


@dataclass(eq=False, slots=True)
class Delivery:
    """A letter on its way into the log, with the goals that were told."""

    letter: Letter
    told: Told
    goals: list[Goal]
    #: Done when it is durable; its error if it came too late.
    recorded: Future[None] = field(default_factory=Future)


@dataclass(eq=False, slots=True)
class Talker:
    """A goal that asks a model again and again."""

    goal: Goal
    #: It makes the plan: it can be redirected, and what is to steer the work waits for the plan.
    is_planning: bool = False
    #: The request in flight.
    call: ModelCall | None = None
    #: The number of the round that this request makes.
    round: int = 0
    #: How many of its requests were cut off since the last one that came to its end.
    cuts: int = 0
    unconfirmed: list[Delivery] = field(default_factory=list)

    def is_meant(self, letter: Letter) -> bool:
        """Whether the message is for this goal. Sub-agents are told only what names them."""
        if letter.goal_id is not None:
            return letter.goal_id == self.goal.id
        return not self.goal.plan.depth and (not self.is_planning or letter.mode == "redirect")

    def next_round(self) -> int:
        """The first round that is made with what is told now."""
        return self.goal.rounds.count if self.call is None else self.round + 1


class Mail:
    """Of one turn."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._lock = threading.Lock()  # before the lock of a plan
        self._waiting: list[Letter] = []
        self._known: set[str] = set()
        self._talkers: dict[Goal, Talker] = {}
        self._told: list[Told] = []
        self._deliveries: list[Delivery] = []
        self._is_closed = False

    # -- whoever sends ---------------------------------------------------------------------------

    def add(self, letter: Letter) -> bool:
        """A message that is recorded. Whether it cut off a request, which is then made again with it.

        Harmless if repeated, and once the turn is over: the message then starts the next one.
        """
        with self._lock:
            if self._is_closed or letter.id in self._known:
                return False
            self._known.add(letter.id)
            self._waiting.append(letter)
            calls = self._to_cut(letter)
        pause_at("mail.before_cut")
        return self._cut(calls)

    def is_at_limit(self, goal_id: str | None) -> bool:
        """Whether a redirect would cut off a model that was cut off too often already."""
        wish = Letter("", "", "redirect", goal_id)
        with self._lock:
            asking = [each for each in self._talkers.values() if each.call is not None and each.is_meant(wish)]
        return bool(asking) and all(each.cuts >= MAX_CUTS for each in asking)

    def _to_cut(self, letter: Letter) -> list[ModelCall]:
        if letter.mode != "redirect":
            return []
        talkers = self._talkers.values()
        return [
            each.call for each in talkers if each.call is not None and each.is_meant(letter) and each.cuts < MAX_CUTS
        ]

    def _cut(self, calls: list[ModelCall]) -> bool:
        cause = Cause(CauseWord.REDIRECT)
        # All of them before the gateway is asked about any: none may go on meanwhile.
        cut = [call for call in calls if _is_cut_by(call, cause)]
        askers = [
            threading.Thread(target=call.cancel_request, args=(self._turn.cancel_timeout_s,), name="redirect", daemon=True)
            for call in cut[1:]
        ]
        for asker in askers:
            asker.start()
        for call in cut[:1]:
            call.cancel_request(self._turn.cancel_timeout_s)
        return bool(cut)

    # -- goals --------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def joined(self, goal: Goal, is_planning: bool = False) -> Iterator[list[Told]]:
        """Inside, the goal asks models. Yields what had been told before, for its history."""
        with self._lock:
            self._talkers[goal] = Talker(goal, is_planning)
            told = list(self._told)
        try:
            yield told
        finally:
            with self._lock:
                self._talkers.pop(goal, None)

    def told(self) -> list[Told]:
        """What has gone in so far, in order."""
        with self._lock:
            return list(self._told)

    def begin_request(self, goal: Goal, call: ModelCall) -> None:
        """Before a request to a model is built: what waits for this goal goes in now, and is durable.

        ``Cancelled`` if the goal is stopped, or the call was cut off by a message meanwhile.
        """
        with self._lock:
            talker = self._talkers.get(goal)
            if talker is None:  # work beside the plan that nobody talks to, such as a title
                return
            letters = [letter for letter in self._waiting if talker.is_meant(letter)]
            self._deliver(letters, talker)
            talker.call, talker.round = call, goal.rounds.count
        pause_at("mail.before_confirmation")
        self._confirm(talker, call)

    def end_request(self, goal: Goal, is_cut: bool) -> None:
        """The request is over; ``is_cut``: a message cut it off."""
        with self._lock:
            talker = self._talkers.get(goal)
            if talker is not None:
                talker.call = None
                talker.cuts = talker.cuts + 1 if is_cut else 0

    # -- delivering -----------------------------------------------------------------------------------

    def _deliver(self, letters: list[Letter], asking: Talker) -> None:
        for letter in letters:
            self._waiting.remove(letter)
            # To the one who makes the plan it is told as to the turn: every goal of that plan finds it in its history.
            meant = [] if asking.is_planning else [each for each in self._talkers.values() if each.is_meant(letter)]
            told = Told(letter.id, letter.text, letter.mode == "redirect")
            delivery = Delivery(letter, told, [talker.goal for talker in meant])
            with asking.goal.plan.lock:  # the order in memory is the order in the log
                places = [(each.goal, each.next_round()) for each in meant]
                for goal, number in places:
                    goal.rounds.tell(told, number)
                delivery.recorded = self._record(letter, places)
            self._told.append(told)
            self._deliveries.append(delivery)
            for each in [asking] if asking.is_planning else meant:
                each.unconfirmed.append(delivery)

    def _record(self, letter: Letter, places: list[tuple[Goal, int]]) -> Future[None]:
        run_id, turn_id = self._turn.start.run_id, self._turn.start.turn_id
        shown = [{"goal_id": goal.id, "round": number} for goal, number in places]
        return self._turn.record(lambda tx: deliver(tx, run_id, turn_id, letter, shown))

    def _confirm(self, talker: Talker, call: ModelCall) -> None:
        while talker.unconfirmed:
            delivery = talker.unconfirmed[0]
            try:
                call.scope.wait_for(delivery.recorded)
            except ServerError as error:
                self._take_back(delivery, error)
            with self._lock:
                if delivery in talker.unconfirmed:
                    talker.unconfirmed.remove(delivery)
        call.scope.checkpoint()

    def _take_back(self, delivery: Delivery, error: ServerError) -> None:
        """It was not delivered. If only the store failed, it waits for another try."""
        with self._lock:
            if delivery not in self._deliveries:
                return
            self._deliveries.remove(delivery)
            self._told.remove(delivery.told)
            if isinstance(error, StoreError):
                self._waiting.insert(0, delivery.letter)
            for goal in delivery.goals:
                with goal.plan.lock:
                    goal.rounds.untell(delivery.letter.id)

    # -- the turn's begin and end --------------------------------------------------------------------

    def begin_with(self, told: list[Told]) -> None:
        """What the turns that this one resumes were told."""
        with self._lock:
            self._told = told + self._told

    def close(self) -> list[Told]:
        """The turn is over: nothing goes in any more. What has gone in, and is durable, in order."""
        with self._lock:
            self._is_closed = True
            deliveries = list(self._deliveries)
        for delivery in deliveries:
            try:
                delivery.recorded.result(SETTLE_S)
            except (ServerError, TimeoutError) as error:
                self._take_back(delivery, error if isinstance(error, ServerError) else StoreError())
        return self.told()


def _is_cut_by(call: ModelCall, cause: Cause) -> bool:
    """Whether a redirect ends the call, this one or one that came before it; not if it had finished, or was stopped."""
    if call.scope.cancel(cause) is Verdict.OVER:
        return False
    stopped_by = call.scope.cause
    return stopped_by is not None and stopped_by.word is CauseWord.REDIRECT
