from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import example, given, settings, strategies as st

from certs.authority import ServingCertificate, new_authority
from certs.publication import Published, Registration
from certs.rotation import next_moment, renewal, steps
from certs.situation import (
    IssueServing,
    Older,
    Publish,
    Restore,
    Serve,
    Situation,
    StageAuthority,
    State,
    Step,
    Terms,
    Tidy,
)
from tests.certs.world import (
    BOTH,
    MUTATES,
    NAME,
    START,
    TERMS,
    VALIDATES,
    Replica,
    World,
    pass_time,
    settled_world,
    sleep_to_the_next_moment,
    sleep_until,
)

FAST = Terms(
    dns_names=(NAME,),
    authority_lifetime=timedelta(days=30),
    serving_lifetime=timedelta(days=9),
    propagation=timedelta(hours=1),
)


def kinds(world: World, *of: type[Step]) -> list[str]:
    return [type(step).__name__ for step in world.history if not of or isinstance(step, of)]


def test_a_first_start_stages_publishes_issues_and_serves_in_this_order_and_at_once() -> None:
    world = World()
    replica = Replica(world)
    replica.work()
    assert kinds(world) == ["StageAuthority", "Publish", "Publish", "IssueServing", "Serve"]
    assert replica.in_service is not None
    assert all(replica.in_service.authority_pem in world.published(one).trusted for one in BOTH)
    assert world.now == START


def test_ten_years_of_rotation_fail_no_call() -> None:
    world, fleet = settled_world()
    while world.now < START + timedelta(days=3660):
        sleep_to_the_next_moment(world, fleet)
    assert len(kinds(world, StageAuthority)) == 2
    assert 15 <= len(kinds(world, IssueServing)) <= 18
    assert len({replica.in_service.certificate_pem for replica in fleet if replica.in_service}) == 1
    assert world.bundle == world.state.authorities


@pytest.mark.prove
def test_ten_years_of_monthly_authorities_leave_no_authority_behind() -> None:
    world, fleet = settled_world(1, FAST)
    longest = 0
    while world.now < START + timedelta(days=3660):
        sleep_to_the_next_moment(world, fleet)
        longest = max(longest, len(world.bundle))
    assert len(kinds(world, StageAuthority)) == pytest.approx(183, abs=2)
    assert longest == 2


def test_a_new_authority_is_served_only_after_every_api_server_can_have_seen_it() -> None:
    world, fleet = settled_world()
    assert world.state.signer is not None
    sleep_until(world, fleet, renewal(world.state.signer))
    for replica in fleet:
        replica.work()
    old = {replica.in_service for replica in fleet}
    assert len(world.bundle) == 2
    assert kinds(world)[-1] == "Publish"

    world.elapsed += TERMS.propagation - timedelta(seconds=1)
    for replica in fleet:
        replica.work()
    assert {replica.in_service for replica in fleet} == old

    world.elapsed += timedelta(seconds=1)
    for replica in fleet:
        replica.work()
    assert {replica.in_service for replica in fleet} == {world.state.serving}
    assert old.isdisjoint({world.state.serving})
    assert len(world.bundle) == 2


def test_the_old_authority_is_dropped_when_its_last_certificate_expires() -> None:
    world, fleet = settled_world(1)
    last = world.state.serving
    assert last is not None
    world.write_secret(replace(world.state, signer=None, older=(Older(last.authority_pem, last.not_after),)))
    pass_time(world, fleet, TERMS.propagation * 3)
    assert last.authority_pem in world.bundle
    assert fleet[0].in_service != last

    sleep_until(world, fleet, last.not_after - timedelta(seconds=1))
    fleet[0].work()
    assert last.authority_pem in world.bundle
    world.elapsed += timedelta(seconds=1)
    fleet[0].work()
    assert last.authority_pem not in world.state.authorities
    pass_time(world, fleet, TERMS.propagation)
    assert last.authority_pem not in world.bundle


@pytest.mark.parametrize("by", BOTH, ids=str)
def test_a_change_of_a_configuration_starts_the_wait_anew(by: Registration) -> None:
    world, fleet = settled_world(1)
    old = fleet[0].in_service
    world.write_secret(replace(world.state, signer=new_authority(now=world.now), older=_older(world)))
    fleet[0].work()
    world.elapsed += TERMS.propagation / 2
    world.spoil(world.published(by).bundles[0], by)
    fleet[0].work()
    world.elapsed += TERMS.propagation / 2
    fleet[0].work()
    assert fleet[0].in_service == old
    world.elapsed += TERMS.propagation / 2
    fleet[0].work()
    assert fleet[0].in_service != old


def _older(world: World) -> tuple[Older, ...]:
    serving = world.state.serving
    assert serving is not None
    return (Older(serving.authority_pem, serving.not_after),)


@pytest.mark.parametrize("moment", ["serving certificate", "authority"])
@pytest.mark.parametrize("dies_at", range(6))
@pytest.mark.parametrize("survivors", [0, 2])
def test_whoever_dies_at_any_step_of_a_rotation_another_completes_it(
    moment: str, dies_at: int, survivors: int
) -> None:
    world, fleet = settled_world(survivors + 1)
    old = world.state
    assert old.signer is not None
    assert old.serving is not None
    sleep_until(world, fleet, renewal(old.signer if moment == "authority" else old.serving))
    old = world.state
    for _ in range(dies_at):
        fleet[0].look()
        if fleet[0].act() is None:
            world.elapsed += TERMS.propagation
    fleet[0].restart()
    pass_time(world, fleet, TERMS.propagation * 4)
    assert {replica.in_service for replica in fleet} == {world.state.serving}
    assert world.state.serving != old.serving
    assert (world.state.signer != old.signer) == (moment == "authority")


@pytest.mark.parametrize("dies_at", range(4))
def test_whoever_dies_in_a_first_start_another_completes_it(dies_at: int) -> None:
    world = World()
    first, second = Replica(world), Replica(world)
    for _ in range(dies_at):
        first.look()
        first.act()
    first.restart()
    second.work()
    assert second.in_service == world.state.serving is not None
    assert second.answers()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["look", "act"])), max_size=40))
def test_three_replicas_of_any_interleaving_start_with_one_secret_and_one_authority(
    moves: list[tuple[int, str]],
) -> None:
    world = World()
    fleet = [Replica(world) for _ in range(3)]
    for who, move in moves:
        if move == "look":
            fleet[who].look()
        else:
            fleet[who].act()
    for replica in fleet:
        replica.work()
    assert {replica.in_service for replica in fleet} == {world.state.serving}
    assert world.bundle == world.state.authorities
    assert kinds(world, StageAuthority) == ["StageAuthority"]
    assert kinds(world, IssueServing) == ["IssueServing"]


ACTIONS = st.one_of(
    st.tuples(st.sampled_from(["look", "act", "act and die", "restart"]), st.integers(0, 2)),
    st.tuples(st.just("pass"), st.integers(1, 9)),
    st.tuples(st.just("sleep"), st.just(0)),
    st.tuples(st.sampled_from(["delete a configuration", "make it again"]), st.integers(0, 1)),
    st.tuples(
        st.sampled_from(["delete", "lose signer key", "lose serving", "lose older", "lose all but signer"]),
        st.just(0),
    ),
)


@pytest.mark.prove
@example(
    [("restart", 0), ("delete a configuration", 1), ("make it again", 1), ("delete", 0)],
).via("found by a search: whoever remembers nothing published without what the others serve by")
@settings(max_examples=80, deadline=None)
@given(st.lists(ACTIONS, max_size=30))
def test_what_is_served_is_accepted_by_every_api_server_at_every_moment(
    actions: list[tuple[str, int]],
) -> None:
    world, fleet = settled_world(3, FAST)
    for action, number in actions:
        replica = fleet[number % 3]
        match action:
            case "look":
                replica.look()
            case "act":
                replica.act()
            case "act and die":
                replica.act(dies_after=True)
            case "restart":
                replica.restart()
            case "pass":
                pass_time(world, fleet, FAST.propagation * number / 8)
            case "sleep":
                sleep_to_the_next_moment(world, fleet)
            case _:
                damage(world, action, of=BOTH[number % 2])
        assert all(one.answers() for one in fleet)
    pass_time(world, fleet, FAST.propagation * 5)
    assert {one.in_service for one in fleet} == {world.state.serving}
    assert all(one.trusted.issuperset(world.state.authorities) for one in world.found)


def damage(world: World, how: str, *, of: Registration) -> None:
    match how:
        case "delete a configuration":
            if len(world.found) == len(BOTH):
                world.delete(of)
        case "make it again":
            if of not in [one.of for one in world.found]:
                world.spoil(b"", of)
        case "delete":
            world.write_secret(None)
        case "lose signer key":
            # What storage makes of it: an authority without its key issues no more.
            of_signer = _of_signer(world.state)
            older = (*_older(world), *world.state.older) if of_signer else world.state.older
            world.write_secret(replace(world.state, signer=None, older=older), damaged=True)
        case "lose serving":
            world.write_secret(replace(world.state, serving=None), damaged=True)
        case "lose older":
            kept = world.state.serving if _of_signer(world.state) else None
            world.write_secret(State(world.state.signer, kept), damaged=True)
        case "lose all but signer":
            world.write_secret(State(world.state.signer), damaged=True)


def _of_signer(state: State) -> bool:
    return bool(
        state.signer and state.serving and state.serving.authority_pem == state.signer.certificate_pem
    )


def test_a_deleted_secret_makes_a_new_authority_and_fails_no_call_on_the_way() -> None:
    world, fleet = settled_world()
    old = fleet[0].in_service
    before = len(world.history)
    world.write_secret(None)
    for replica in fleet:
        replica.work()
    assert world.state.serving == old
    assert [type(step) for step in world.history[before:]] == [Restore, StageAuthority, Publish, Publish]
    pass_time(world, fleet, TERMS.propagation * 3)
    assert {replica.in_service for replica in fleet} == {world.state.serving}
    assert world.state.serving != old


def test_a_secret_replaced_by_anothers_leads_over_to_it_without_a_failed_call() -> None:
    world, fleet = settled_world()
    other, _ = settled_world()
    old = fleet[0].in_service
    assert old is not None
    world.write_secret(other.secret)
    for replica in fleet:
        replica.work()
    assert {replica.in_service for replica in fleet} == {old}
    assert set(world.bundle) == {old.authority_pem, *other.state.authorities}
    pass_time(world, fleet, TERMS.propagation * 2)
    assert {replica.in_service for replica in fleet} == {other.state.serving}


def test_an_authority_whose_certificate_is_served_longer_than_the_secret_says_is_trusted_as_long() -> None:
    world, fleet = settled_world(1)
    serving = fleet[0].in_service
    assert serving is not None
    hasty = Older(serving.authority_pem, world.now + timedelta(days=1))
    world.write_secret(replace(world.state, signer=new_authority(now=world.now), older=(hasty,)))
    fleet[0].work()
    assert [one.until for one in world.state.older] == [serving.not_after]


def test_a_fresh_replica_that_finds_no_secret_leaves_the_others_the_time_to_claim_their_authority() -> None:
    world, fleet = settled_world(1)
    world.write_secret(None)
    newcomer = Replica(world)
    newcomer.work()
    assert newcomer.in_service is not None
    pass_time(world, [newcomer, *fleet], TERMS.propagation * 4)
    assert newcomer.in_service == fleet[0].in_service == world.state.serving


@pytest.mark.parametrize("emptied", [BOTH, BOTH[:1], BOTH[1:]], ids=["both", "one", "the other"])
def test_an_emptied_bundle_is_filled_and_nothing_else_is_done(emptied: tuple[Registration, ...]) -> None:
    world, fleet = settled_world()
    serving = fleet[0].in_service
    before = len(world.history)
    world.spoil(b"", *emptied)
    for replica in fleet:
        replica.work()
    written = world.history[before:]
    assert [step.of for step in written if isinstance(step, Publish)] == list(emptied)
    assert len(written) == len(emptied)
    assert world.bundle == world.state.authorities
    assert {replica.in_service for replica in fleet} == {serving}


def test_a_foreign_authority_is_joined_at_once_and_removed_when_nobody_claims_it() -> None:
    world, fleet = settled_world()
    foreign = new_authority(now=world.now).certificate_pem
    world.spoil(foreign)
    for replica in fleet:
        replica.work()
    assert world.bundle == (*world.state.authorities, foreign)
    pass_time(world, fleet, TERMS.propagation * 2)
    assert world.bundle == world.state.authorities


@pytest.mark.parametrize("strangers", [1, 2])
def test_a_foreign_authority_goes_one_propagation_after_the_last_change_of_its_configuration(
    strangers: int,
) -> None:
    """`docs/security.md` says for how long one is trusted that somebody put there."""
    world, fleet = settled_world()
    foreign = [new_authority(now=world.now).certificate_pem for _ in range(strangers)]
    world.spoil(b"".join(foreign))
    for replica in fleet:
        replica.work()
    pass_time(world, fleet, TERMS.propagation - timedelta(seconds=1))
    assert world.bundle == (*world.state.authorities, *foreign)
    pass_time(world, fleet, timedelta(seconds=1))
    assert world.bundle == world.state.authorities
    told = {1: "an authority that is not ours", 2: "2 authorities that are not ours"}
    published = [step.because for step in world.history if isinstance(step, Publish)]
    assert set(published[-len(world.found) :]) == {told[strangers]}


def test_an_authority_that_the_secret_forgets_stays_until_whoever_serves_it_can_claim_it() -> None:
    world, (early, late) = settled_world(2)
    old = late.in_service
    assert old is not None
    world.write_secret(replace(world.state, signer=new_authority(now=world.now), older=_older(world)))
    for replica in (early, late):
        replica.work()
    world.elapsed += TERMS.propagation
    early.work()
    assert early.in_service != late.in_service == old
    world.write_secret(replace(world.state, older=()), damaged=True)
    early.work()
    assert late.answers()
    assert old.authority_pem in world.bundle


def test_a_bundle_that_cannot_be_read_is_replaced_whole() -> None:
    world, fleet = settled_world(1)
    good = world.published(VALIDATES).bundles[0]
    for rubbish in (b"rubbish", good[:-40], b"\n" + good):
        world.spoil(rubbish)
        fleet[0].work()
        assert {one.bundles for one in world.found} == {(b"".join(world.state.authorities),)}


def test_nothing_is_published_before_the_guard_is_ready_to_answer() -> None:
    authority = new_authority(now=START)
    empty = Published(VALIDATES, "uid", 1, (b"",))
    situation = Situation(State(authority), START, (empty,), may_publish=False)
    assert list(steps(situation, TERMS)) == []
    assert [type(step) for step in steps(replace(situation, may_publish=True), TERMS)] == [Publish]


def test_without_a_webhook_configuration_nothing_is_served_or_issued() -> None:
    _, fleet = settled_world(1)
    assert list(steps(replace(fleet[0].look(), published=(), in_service=None), TERMS)) == []


def test_an_authority_in_one_webhook_only_is_not_published() -> None:
    world, _ = settled_world(1)
    bundle = world.published(VALIDATES).bundles[0]
    half = Published(VALIDATES, "uid", 9, (bundle, b""))
    situation = Situation(world.state, world.now, (half,), unchanged_for=TERMS.propagation)
    assert [type(step) for step in steps(situation, TERMS)] == [Publish]


def test_a_replica_that_cannot_publish_goes_on_to_what_it_can_do() -> None:
    world, fleet = settled_world(1)
    world.spoil(new_authority(now=world.now).certificate_pem)
    world.write_secret(None)
    due = [type(step) for step in steps(fleet[0].look(), TERMS)]
    assert due == [Publish, Publish, Restore, StageAuthority]


@pytest.mark.parametrize("absent", BOTH, ids=str)
def test_an_absent_configuration_stops_neither_a_start_nor_a_rotation(absent: Registration) -> None:
    world = World()
    world.delete(absent)
    replica = Replica(world)
    replica.work()
    assert replica.in_service is not None
    assert kinds(world, Publish) == ["Publish"]
    old = world.state
    pass_time(world, [replica], TERMS.propagation * 2)
    assert old.signer is not None
    sleep_until(world, [replica], renewal(old.signer))
    pass_time(world, [replica], TERMS.propagation * 3)
    assert replica.in_service == world.state.serving
    assert world.state.signer != old.signer


@pytest.mark.parametrize("late", BOTH, ids=str)
def test_a_new_authority_is_served_only_once_it_is_in_every_configuration_that_exists(
    late: Registration,
) -> None:
    """One of the two is not written: by a permission that is missing, say."""
    world, (replica,) = settled_world(1)
    old = replica.in_service
    assert old is not None
    signer = new_authority(now=world.now)
    world.write_secret(replace(world.state, signer=signer, older=_older(world)))
    (early,) = (one for one in BOTH if one != late)
    bundle = signer.certificate_pem + old.authority_pem
    world.write_bundle(bundle, of=early)
    for _ in range(8):
        world.elapsed += TERMS.propagation
        due = list(steps(replica.look(), TERMS))
        assert [step.of for step in due if isinstance(step, Publish)] == [late]
        assert not any(isinstance(step, Serve | IssueServing) for step in due)
    world.write_bundle(bundle, of=late)
    pass_time(world, [replica], TERMS.propagation * 2)
    assert replica.in_service == world.state.serving != old


@pytest.mark.parametrize("unread", BOTH, ids=str)
def test_while_a_configuration_cannot_be_read_the_other_is_put_right_and_nothing_new_is_served(
    unread: Registration,
) -> None:
    world, (replica,) = settled_world(1)
    signer = new_authority(now=world.now)
    world.write_secret(replace(world.state, signer=signer, older=_older(world)))
    world.elapsed += TERMS.propagation * 4
    blind = replace(
        replica.look(),
        published=tuple(one for one in world.found if one.of != unread),
        unread=True,
        unchanged_for=TERMS.propagation * 4,
    )
    for situation in (blind, replace(blind, in_service=None)):
        due = list(steps(situation, TERMS))
        assert [type(step) for step in due] == [Publish]
        assert unread not in [step.of for step in due if isinstance(step, Publish)]
    # So does one that has nothing to show: it would be asked by an API server that may not trust it.
    written = Published(VALIDATES, "uid", 9, (b"".join(world.state.authorities),))
    served = replace(blind, published=(written,), in_service=None)
    assert not any(isinstance(step, Serve | IssueServing) for step in steps(served, TERMS))


def test_a_configuration_that_is_made_again_is_filled_and_what_is_served_stays() -> None:
    world, fleet = settled_world()
    serving = fleet[0].in_service
    world.delete(MUTATES)
    pass_time(world, fleet, TERMS.propagation * 2)
    world.spoil(b"", MUTATES)
    for replica in fleet:
        replica.work()
    assert world.bundle == world.state.authorities
    assert {replica.in_service for replica in fleet} == {serving}


Spoil = Callable[[World, ServingCertificate], None]


def _expired(world: World, serving: ServingCertificate) -> None:
    signer = world.state.signer
    assert signer is not None
    long_ago = signer.issue(
        dns_names=[NAME], now=signer.not_before + timedelta(minutes=5), lifetime=timedelta(seconds=1)
    )
    world.write_secret(replace(world.state, serving=long_ago))


def _with_wrong_names(world: World, serving: ServingCertificate) -> None:
    signer = world.state.signer
    assert signer is not None
    world.write_secret(replace(world.state, serving=signer.issue(dns_names=["elsewhere"], now=world.now)))


def _lost(world: World, serving: ServingCertificate) -> None:
    world.write_secret(replace(world.state, serving=None), damaged=True)


@pytest.mark.parametrize("spoil", [_expired, _with_wrong_names, _lost])
@pytest.mark.parametrize("restarted", [False, True])
def test_an_unusable_serving_certificate_is_replaced_at_once_by_one_of_the_same_authority(
    spoil: Spoil, restarted: bool
) -> None:
    world, fleet = settled_world()
    before, authorities = fleet[0].in_service, world.state.authorities
    assert before is not None
    spoil(world, before)
    if restarted:
        for replica in fleet:
            replica.restart()
    for replica in fleet:
        replica.work()
        assert replica.answers()
    assert {replica.in_service for replica in fleet} == {world.state.serving}
    assert world.state.serving not in (before, None)
    assert world.state.serving is not None
    assert all(NAME in step.certificate.names for step in world.history if isinstance(step, Serve))
    assert world.state.authorities == authorities
    assert not world.damaged


def test_replicas_that_want_different_names_settle_on_both() -> None:
    world = World()
    old, new = Replica(world), Replica(world)
    old.work()
    other_terms = replace(TERMS, dns_names=("other.svc",), ip_addresses=("::1",))
    for _ in range(3):
        for replica, terms in ((new, other_terms), (old, TERMS)):
            world.terms = terms
            replica.work()
    assert world.state.serving is not None
    assert world.state.serving.names == {NAME, "other.svc", "::1"}
    assert len(kinds(world, IssueServing)) == 2


@pytest.mark.parametrize("jump", [timedelta(days=400), timedelta(days=4000), timedelta(days=-400)])
def test_a_clock_that_jumps_heals_and_heals_again_when_it_jumps_back(jump: timedelta) -> None:
    world, fleet = settled_world()
    for step in (jump, -jump):
        world.clock_error += step
        pass_time(world, fleet, TERMS.propagation * 4, check=False)
        assert {replica.in_service for replica in fleet} == {world.state.serving}
        assert all(replica.answers() for replica in fleet)


def test_a_damaged_secret_is_written_whole_even_when_nothing_in_it_is_missed() -> None:
    world, fleet = settled_world(1)
    world.write_secret(world.secret, damaged=True)
    fleet[0].work()
    assert isinstance(world.history[-1], Tidy)
    assert not world.damaged


def test_renewal_is_due_at_two_thirds_of_the_lifetime() -> None:
    authority = new_authority(now=START, lifetime=timedelta(days=30))
    assert renewal(authority) == START + timedelta(days=20)
    serving = authority.issue(dns_names=[NAME], now=START, lifetime=timedelta(seconds=9))
    assert renewal(serving) == START + timedelta(seconds=6)


def test_the_next_moment_is_never_now() -> None:
    world, fleet = settled_world(1)
    for _ in range(20):
        situation = fleet[0].look()
        assert next_moment(situation, TERMS) > world.now
        sleep_to_the_next_moment(world, fleet)
    assert next_moment(Situation(State(), START), TERMS) > START


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (Terms.__init__, "at least one DNS name"),
        (lambda _: Terms(ip_addresses=("localhost",)), "localhost"),
        (lambda _: Terms(ip_addresses=("fe80::1%eth0",)), "has a zone, eth0"),
        (lambda _: Terms(("",)), "empty"),
        (lambda _: Terms(("bücher.example",)), "A-label"),
        (lambda _: Terms((NAME,), serving_lifetime=timedelta(seconds=180)), "has to outlast"),
        (lambda _: Terms((NAME,), authority_lifetime=timedelta(seconds=180)), "has to outlast"),
    ],
)
def test_terms_that_cannot_be_kept_are_refused(wrong: Callable[[Terms], object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        wrong(Terms.__new__(Terms))


def test_what_is_served_is_served_once() -> None:
    world, _ = settled_world()
    assert kinds(world, Serve) == ["Serve"] * 3
