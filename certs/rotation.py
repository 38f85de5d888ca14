"""What a rotation does next: a pure function of what the Secret holds, what is published and what is served.

The Secret holds a *signer*, the one authority that issues; a *serving* certificate; and *older* authorities,
each trusted until the last certificate it issued has expired.

    phase     serving certificate                   the bundle holds
    empty     none                                  nothing of ours
    staged    none, or one of an older authority    the older ones and, once published, the signer
    settled   one of the signer                     the signer, and older ones until they are over

    from -> to           when                                             what is written into the Secret
    empty -> staged      at once                                          a signer
    settled -> staged    the signer is past two thirds of its lifetime,   a signer, the last one as older
                         or unusable
    staged -> settled    the signer is published, and everywhere          a serving certificate
    settled -> settled   the serving certificate is past two thirds of    a serving certificate
                         its lifetime, or unusable
    any -> same          an older authority is over                       the rest

*Published* means: found in every webhook of ours, of each webhook configuration that exists, as read back
from the API server. *Everywhere* means: these have been seen unchanged for `propagation`, so that an API
server whose watch lags by less than that knows them. The wait is measured by each replica for itself and is
not stored: one that restarts waits anew, which costs time and no call. A configuration that is absent has
nobody called, and so stops nothing; of one that cannot be read nobody knows whom it has the API servers
trust, so nothing new is served meanwhile.

Each transition is one conditional write of the Secret, and publishing is one conditional write of each
webhook configuration, whatever becomes of the other. Whoever is killed leaves one of the phases, from which
any replica goes on; of replicas that take the same step at once, one succeeds and the others read again.

A replica serves the Secret's certificate once its authority is published and everywhere; until then it stays
with the one it has. One that has none, and finds none in the Secret, issues and serves as soon as the signer
is published: to wait would answer nobody, while an API server that knows the bundle already can be answered.

What a replica serves is worth more than the Secret: while it is valid its authority stays in the bundle, and
it is written back into a Secret that has lost it. Its authority's key never is, so that deleting the Secret,
or only `ca.key` in it, makes new keys and fails no call. An authority that is in the bundle but neither in
the Secret nor served here may be what another replica serves, so it is removed only after it was seen like
that for `propagation`, in which that replica claims it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from certs.authority import CLOCK_SKEW, Authority, ServingCertificate, is_address, new_authority
from certs.publication import Published
from certs.situation import (
    IssueServing,
    Older,
    Publish,
    Restore,
    SecretStep,
    Serve,
    Situation,
    StageAuthority,
    State,
    Step,
    Terms,
    Tidy,
)


def steps(situation: Situation, terms: Terms) -> Iterator[Step]:
    """Yield what is to be done, most urgent first; each supposes that none of the others was done.

    So whoever did one looks at the situation anew, and whoever could not do it tries the next.
    """
    found = (
        _serve(situation, terms),
        _issue(situation, terms),
        *(_publish(situation, one, terms) for one in situation.published),
        _restore(situation, terms),
        _stage(situation),
        _tidy(situation),
    )
    yield from (step for step in found if step is not None)


def next_moment(situation: Situation, terms: Terms) -> datetime:
    """Return when, after `now`, time alone makes the next step due; nothing else need be looked at before."""
    state, now = situation.state, situation.now
    moments = [one.until for one in state.older]
    if state.signer is not None:
        moments += [renewal(state.signer), state.signer.not_before]
    if state.serving is not None:
        moments += [renewal(state.serving), state.serving.not_before, state.serving.not_after]
    moments += [now + terms.propagation - situation.unchanged_for]
    moments += [now + terms.propagation - seen for seen in situation.unclaimed_for.values()]
    moments += [now + situation.rest]
    return min((moment for moment in moments if moment > now), default=now + terms.serving_lifetime)


def after(step: SecretStep, state: State, terms: Terms, now: datetime) -> State:
    """Return what the Secret holds after this step; with new keys each time, where the step makes any.

    Raises ValueError when a certificate is to be issued for a malformed name.
    """
    older = state.older
    match step:
        case StageAuthority():
            if state.signer and state.serving and _is_of(state.serving, state.signer):
                older = _with_authority_of(state.serving, older)
            signer = new_authority(now=now, lifetime=terms.authority_lifetime)
            return _consistent(State(signer, state.serving, older), now)
        case IssueServing() if state.signer is not None:
            serving = state.signer.issue(
                dns_names=sorted(name for name in step.names if not is_address(name)),
                ip_addresses=sorted(name for name in step.names if is_address(name)),
                now=now,
                lifetime=terms.serving_lifetime,
            )
            return _consistent(State(state.signer, serving, older), now)
        case Restore():
            kept = step.certificate if step.lost else state.serving
            return _consistent(State(state.signer, kept, _with_authority_of(step.certificate, older)), now)
        case _:
            return _consistent(State(state.signer, state.serving, older), now)


def renewal(certificate: Authority | ServingCertificate) -> datetime:
    """Return when two thirds of a certificate's lifetime have passed, its backdating not counted."""
    lifetime = certificate.not_after - certificate.not_before - CLOCK_SKEW
    return certificate.not_after - max(lifetime, timedelta()) / 3


def _serve(situation: Situation, terms: Terms) -> Serve | None:
    held, in_service = _held(situation, terms), _in_service(situation, terms)
    if held is None or held.authority_pem not in situation.trusted:
        return None
    if in_service is None:
        return Serve(held)
    if held.certificate_pem == in_service.certificate_pem:
        return None
    known = held.authority_pem == in_service.authority_pem or _everywhere(situation, terms)
    return Serve(held) if known else None


def _issue(situation: Situation, terms: Terms) -> IssueServing | None:
    state = situation.state
    if state.signer is None or state.signer.certificate_pem not in situation.trusted:
        return None
    if _lifetime_fault(state.signer, situation.now) is not None:
        return None
    current = [one for one in (_held(situation, terms), _in_service(situation, terms)) if one is not None]
    in_use = any(_is_of(one, state.signer) for one in current)
    if current and not in_use and not _everywhere(situation, terms):
        return None
    return _serving_fault(state.serving, state.signer, situation, terms)


def _publish(situation: Situation, published: Published, terms: Terms) -> Publish | None:
    in_service = _in_service(situation, terms)
    ours = list(situation.state.authorities)
    if in_service is not None:
        ours.append(in_service.authority_pem)
    if not situation.may_publish or not ours:
        return None
    # One that was made anew gets what the others are called with: a replica that remembers nothing does not
    # know whose that is, and another may serve by it.
    elsewhere = [pem for one in situation.published for pem in one.present]
    strays = [pem for pem in published.present or elsewhere if pem not in ours]
    unclaimed = situation.unclaimed_for.get(published.of, timedelta()) >= terms.propagation
    wanted = dict.fromkeys(ours if unclaimed else [*ours, *strays])
    bundle = b"".join(wanted)
    if all(one == bundle for one in published.bundles):
        return None
    if not published.trusted.issuperset(ours):
        because = "an authority of ours is missing"
    elif wanted.keys().isdisjoint(strays) and strays:
        some = "an authority that is" if len(strays) == 1 else f"{len(strays)} authorities that are"
        because = f"{some} not ours"
    else:
        because = "not written as it should be"
    return Publish(because, bundle, published.of)


def _restore(situation: Situation, terms: Terms) -> Restore | None:
    in_service = _in_service(situation, terms)
    if in_service is None:
        return None
    state = situation.state
    of_signer = state.signer is not None and _is_of(in_service, state.signer)
    trusted_long_enough = of_signer or any(
        one.certificate_pem == in_service.authority_pem and one.until >= in_service.not_after
        for one in state.older
    )
    lost = _held(situation, terms) is None
    if lost and not of_signer:
        return Restore("the Secret has no usable serving certificate", in_service, lost=True)
    if not trusted_long_enough:
        return Restore("the Secret lacks the authority of what is served", in_service, lost=False)
    return None


def held_back(situation: Situation) -> StageAuthority | None:
    """Return the authority that would be made now, were it not for `rest`."""
    return _wanted_authority(situation) if situation.rest else None


def _stage(situation: Situation) -> StageAuthority | None:
    return None if situation.rest else _wanted_authority(situation)


def _wanted_authority(situation: Situation) -> StageAuthority | None:
    signer = situation.state.signer
    if signer is None:
        return StageAuthority("there is no authority with its key")
    fault = _lifetime_fault(signer, situation.now)
    return None if fault is None else StageAuthority(f"the authority {fault}")


def _tidy(situation: Situation) -> Tidy | None:
    if situation.damaged:
        return Tidy("parts of the Secret were unusable")
    if any(one.until <= situation.now for one in situation.state.older):
        return Tidy("the last certificate of an older authority expired")
    return None


def _serving_fault(
    serving: ServingCertificate | None, signer: Authority, situation: Situation, terms: Terms
) -> IssueServing | None:
    if serving is None:
        return IssueServing("there is no usable serving certificate", terms.names)
    if not _is_of(serving, signer):
        return IssueServing("there is a new authority", terms.names)
    if missing := terms.names - serving.names:
        # Replicas of two releases may want different names; with those of both, neither issues again.
        both = terms.names | serving.names
        return IssueServing(f"the serving certificate lacks {', '.join(sorted(missing))}", both)
    fault = _lifetime_fault(serving, situation.now)
    return None if fault is None else IssueServing(f"the serving certificate {fault}", terms.names)


def _lifetime_fault(certificate: Authority | ServingCertificate, now: datetime) -> str | None:
    if now < certificate.not_before:
        return f"is not valid before {certificate.not_before:%Y-%m-%d %H:%M:%SZ}"
    if now >= certificate.not_after:
        return f"expired at {certificate.not_after:%Y-%m-%d %H:%M:%SZ}"
    if now >= renewal(certificate):
        return "has passed two thirds of its lifetime"
    return None


def _held(situation: Situation, terms: Terms) -> ServingCertificate | None:
    return _usable(situation.state.serving, situation.now, terms)


def _in_service(situation: Situation, terms: Terms) -> ServingCertificate | None:
    return _usable(situation.in_service, situation.now, terms)


def _usable(serving: ServingCertificate | None, now: datetime, terms: Terms) -> ServingCertificate | None:
    if serving is None or not serving.not_before <= now < serving.not_after:
        return None
    return serving if serving.names >= terms.names else None


def _is_of(serving: ServingCertificate, authority: Authority) -> bool:
    return serving.authority_pem == authority.certificate_pem


def _everywhere(situation: Situation, terms: Terms) -> bool:
    seen = bool(situation.published) and not situation.unread
    return seen and situation.unchanged_for >= terms.propagation


def _with_authority_of(serving: ServingCertificate, older: tuple[Older, ...]) -> tuple[Older, ...]:
    others = tuple(one for one in older if one.certificate_pem != serving.authority_pem)
    until = max(
        [serving.not_after, *(one.until for one in older if one.certificate_pem == serving.authority_pem)]
    )
    return (Older(serving.authority_pem, until), *others)


def _consistent(state: State, now: datetime) -> State:
    """Without what is over, and without a serving certificate of no authority."""
    kept = replace(state, older=tuple(one for one in state.older if one.until > now))
    return (
        kept
        if kept.serving is None or kept.serving.authority_pem in kept.authorities
        else replace(kept, serving=None)
    )
