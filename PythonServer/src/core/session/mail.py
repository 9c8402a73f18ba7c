"""The messages that go into a turn at work: before the next request to a model, or in the place of the one that runs.

A message waits here until a goal that it is for is about to ask its model; then it is *delivered* to every goal that
asks models now, by one decision of the writer. Whoever is about to ask waits until that is durable, so a model never
has what the log has not. A stop, a withdrawal or the turn's end that the writer met first makes the delivery void: the
row is the truth, and the message then has the fate that it has there.

Another order of the messages is a decision of the writer, too. What was on its way lies before it; and nothing is
delivered from then on until the order is known here, so that what the user was told comes true.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from core.agent.told import Told
from core.call import Outcome
from core.cancellation import Cause, CauseWord, Scope, Verdict
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
    #: It is known to be durable.
    is_settled: bool = False


class Ended(Enum):
    """How a goal's newest request ended."""

    ANSWERED = "answered"
    CUT = "cut"
    FAILED = "failed"


@dataclass(eq=False, slots=True)
class Talker:
    """A goal that asks a model again and again."""

    goal: Goal
    #: It makes the plan: it can be redirected, and what is to steer the work waits for the plan.
    is_planning: bool = False
    #: The request in flight.
    call: ModelCall | None = None
    #: The number of the round that this request makes, or the one before made.
    round: int = 0
    #: How the one before ended.
    ended: Ended | None = None
    #: How many of its requests were cut off since the last one that came to its end.
    cuts: int = 0
    unconfirmed: list[Delivery] = field(default_factory=list)

    def is_meant(self, letter: Letter) -> bool:
        """Whether the message is for this goal. Sub-agents are told only what names them."""
        if letter.goal_id is not None:
            return letter.goal_id == self.goal.id
        return not self.goal.plan.depth and (not self.is_planning or letter.mode == "redirect")

    def place(self) -> tuple[int, bool]:
        """The first round that is made with what is told now; whether an answer was cut off before it."""
        count = self.goal.rounds.count
        if self.call is None:
            # The tools that an answer calls may not be noted yet.
            return max(count, self.round + 1) if self.ended is Ended.ANSWERED else count, self.ended is Ended.CUT
        # One that was cut off says nothing more, and is about to be made again.
        return (count, True) if _is_redirect(self.call.scope.cause) else (self.round + 1, False)


class Mail:
    """Of one turn."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._lock = threading.Lock()  # before the lock of a plan
        self._waiting: list[Letter] = []
        # Every letter that has come.
        self._known: set[str] = set()
        # Id -> place, of every letter that has come or was moved before it came.
        self._places: dict[str, int] = {}
        # Held while an order is decided: the one that is handed over last is the newest.
        self._moving = threading.Lock()
        # Done when the order that is being decided is in force here.
        self._move: Future[None] | None = None
        self._talkers: dict[Goal, Talker] = {}
        self._told: list[Told] = []
        self._deliveries: list[Delivery] = []
        self._is_closed = False

    # -- whoever sends ---------------------------------------------------------------------------

    def add(self, letter: Letter) -> bool:
        """A message that is recorded. Whether it cut off a request, which is then made again with it.

        Harmless if repeated, and once the turn is over: the message then starts the next one.
        """
        pause_at("mail.before_cut")
        with self._lock:
            if self._is_closed or letter.id in self._known:
                return False
            self._known.add(letter.id)
            self._places.setdefault(letter.id, len(self._places))
            self._put_waiting(letter)
            # At once: a goal that delivers it meanwhile must see which answers are at their end.
            cut = [call for call in self._to_cut(letter) if _is_cut_by(call, Cause(CauseWord.REDIRECT))]
        self._ask_to_cancel(cut)
        return bool(cut)

    def is_at_limit(self, goal_id: str | None) -> bool:
        """Whether a redirect would cut off a model that was cut off too often already."""
        wish = Letter("", "", "redirect", goal_id)
        with self._lock:
            asking = [each for each in self._talkers.values() if each.call is not None and each.is_meant(wish)]
        return bool(asking) and all(each.cuts >= MAX_CUTS for each in asking)

    def _put_waiting(self, *letters: Letter) -> None:
        self._waiting = sorted([*self._waiting, *letters], key=lambda letter: self._places[letter.id])

    def move(self, decide: Callable[[], list[dict[str, Any]]]) -> list[dict[str, Any]]:
        """Have another order decided, and deliver by it from then on.

        ``decide`` returns every message of the run that waits, in the new order, and so does this. What it raises
        leaves the order as it was. ``StoreError`` if another such decision does not come to its end.
        """
        if not self._moving.acquire(timeout=SETTLE_S):
            raise StoreError("the store did not answer in time")
        move: Future[None] = Future()
        try:
            with self._lock:
                self._move = move
            moved = decide()
            pause_at("mail.moved")
            self._reorder([each["message_id"] for each in moved])
            return moved
        finally:
            with self._lock:
                self._move = None
            self._moving.release()
            move.set_result(None)

    def _reorder(self, order: list[str]) -> None:
        with self._lock:
            # What is not in it came behind it, or waits no more.
            rest = [each for each in sorted(self._places, key=self._places.__getitem__) if each not in order]
            self._places = {each: place for place, each in enumerate([*order, *rest])}
            self._put_waiting()

    def _to_cut(self, letter: Letter) -> list[ModelCall]:
        if letter.mode != "redirect":
            return []
        talkers = self._talkers.values()
        return [
            each.call for each in talkers if each.call is not None and each.is_meant(letter) and each.cuts < MAX_CUTS
        ]

    def _ask_to_cancel(self, cut: list[ModelCall]) -> None:
        askers = [
            threading.Thread(target=call.cancel_request, args=(self._turn.cancel_timeout_s,), name="redirect", daemon=True)
            for call in cut[1:]
        ]
        for asker in askers:
            asker.start()
        for call in cut[:1]:
            call.cancel_request(self._turn.cancel_timeout_s)

    # -- goals --------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def joined(self, goal: Goal, is_planning: bool = False) -> Iterator[list[Told]]:
        """Inside, the goal asks models. Yields what had been told before, for its history; all of that is durable."""
        told = self._join(Talker(goal, is_planning))
        try:
            yield told
        finally:
            with self._lock:
                self._talkers.pop(goal, None)

    def _join(self, talker: Talker) -> list[Told]:
        scope = talker.goal.scope
        assert scope is not None
        while True:
            with self._lock:
                unsettled = [each for each in self._deliveries if not each.is_settled]
                if not unsettled:
                    self._talkers[talker.goal] = talker
                    return list(self._told)
            for delivery in unsettled:
                self._settle(delivery, scope)

    def told(self) -> list[Told]:
        """What has gone in so far, in order."""
        with self._lock:
            return list(self._told)

    def begin_request(self, goal: Goal, call: ModelCall) -> None:
        """Before a request to a model is built: what waits for this goal goes in now, and is durable.

        ``Cancelled`` if the goal is stopped, or the call was cut off by a message meanwhile.
        """
        call.scope.checkpoint()
        pause_at("mail.before_delivery")
        while isinstance(talker := self._enter(goal, call), Future):
            pause_at("mail.waits_for_move")
            call.scope.wait_for(talker)
        if talker is None:  # work beside the plan that nobody talks to, such as a title
            return
        pause_at("mail.before_confirmation")
        self._confirm(talker, call)
        pause_at("mail.confirmed")

    def _enter(self, goal: Goal, call: ModelCall) -> Talker | Future[None] | None:
        """Deliver what waits for the goal, and note its request; or what to wait for first: the order is being decided."""
        with self._lock:
            talker = self._talkers.get(goal)
            if talker is None:
                return None
            letters = [letter for letter in self._waiting if talker.is_meant(letter)]
            if letters and self._move is not None:
                return self._move
            self._deliver(letters, talker)
            talker.call, talker.round = call, goal.rounds.count
            return talker

    def end_request(self, goal: Goal, is_cut: bool) -> None:
        """The request is over; ``is_cut``: a message cut it off."""
        with self._lock:
            talker = self._talkers.get(goal)
            if talker is None or talker.call is None:
                return
            has_ended = talker.call.outcome is Outcome.ALREADY_DONE
            talker.ended = Ended.CUT if is_cut else Ended.ANSWERED if has_ended else Ended.FAILED
            if talker.ended is Ended.FAILED:
                with goal.plan.lock:
                    goal.rounds.ask_again()
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
                places = [(each.goal, *each.place()) for each in meant]
                for goal, number, is_cut in places:
                    goal.rounds.tell(replace(told, is_cut=is_cut), number)
                delivery.recorded = self._record(letter, places)
            self._told.append(told)
            self._deliveries.append(delivery)
            for each in [asking] if asking.is_planning else meant:
                each.unconfirmed.append(delivery)

    def _record(self, letter: Letter, places: list[tuple[Goal, int, bool]]) -> Future[None]:
        run_id, turn_id = self._turn.start.run_id, self._turn.start.turn_id
        shown = [{"goal_id": goal.id, "round": number, "cut": is_cut} for goal, number, is_cut in places]
        return self._turn.record(lambda tx: deliver(tx, run_id, turn_id, letter, shown))

    def _confirm(self, talker: Talker, call: ModelCall) -> None:
        while talker.unconfirmed:
            self._settle(talker.unconfirmed[0], call.scope)
            talker.unconfirmed.pop(0)  # others only append
        call.scope.checkpoint()

    def _settle(self, delivery: Delivery, scope: Scope) -> None:
        """Wait until it is durable; if it came to nothing, nobody was told."""
        try:
            scope.wait_for(delivery.recorded)
            delivery.is_settled = True
        except ServerError as error:
            self._take_back(delivery, error)

    def _take_back(self, delivery: Delivery, error: ServerError) -> None:
        """It was not delivered. If only the store failed, it waits for another try."""
        with self._lock:
            if delivery not in self._deliveries:
                return
            self._deliveries.remove(delivery)
            self._told.remove(delivery.told)
            if isinstance(error, StoreError):
                self._put_waiting(delivery.letter)
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
            except ServerError as error:
                self._take_back(delivery, error)
            except TimeoutError:
                if delivery.recorded.cancel():  # else it is being written at this moment, and counts
                    self._take_back(delivery, StoreError())
        return self.told()


def _is_cut_by(call: ModelCall, cause: Cause) -> bool:
    """Whether a redirect ends the call, this one or one that came before it; not if it had finished, or was stopped."""
    return call.scope.cancel(cause) is not Verdict.OVER and _is_redirect(call.scope.cause)


def _is_redirect(cause: Cause | None) -> bool:
    return cause is not None and cause.word is CauseWord.REDIRECT
