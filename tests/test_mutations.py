"""Each part of the rule is held by a test: without the part, the test named here goes red."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutants import Part, mutate, taken_away
from tests.parts_of_faults import FAULTS
from tests.repository import REPOSITORY

FAILED = 1
"""pytest's exit code when tests ran and some failed; an import error or no test found is another."""


READING_THE_JOBSET = """\
    jobset = await attempt("jobset", "reading the JobSet", _jobset(cluster, subject))
    jobset_uid = None if isinstance(jobset, Failure) else jobset.lasting_uid
"""
READING_THE_JOBS = """\
    jobs = await attempt("jobs", "listing the Jobs", _jobs(cluster, subject, jobset_uid=jobset_uid))
"""
READING_THE_PODS = """\
    pods = await asyncio.gather(
        *(
            attempt("pods", "listing the pods", _remaining(cluster, subject, selector, every_pod=every_pod))
            for selector in subject.selectors
        )
    )
"""
READING_THE_JOBS_OF_OTHER_STARTS = """\
    jobs = await asyncio.gather(
        *(
            attempt("jobs", "listing the Jobs", _jobs(cluster, subject, selector, jobset.uid))
            for selector in jobs_of_other_starts(job.jobset_name, job.start)
        )
    )
"""
READING_THE_PODS_OF_OTHER_STARTS = """\
    listing = [_pods(cluster, subject)]
    if (elsewhere := pods_of_other_jobsets(job)) is not None:
        listing.append(_pods_elsewhere(cluster, subject, elsewhere))
    pods = await asyncio.gather(*(attempt("pods", "listing the pods", read) for read in listing))
"""
ANOTHER_START = "tests/rule/test_starts.py::test_a_pod_of_another_start_is_told"
CALLS = "tests/guard/test_calls.py"
BY_HAND = "tests/guard/test_jobs_by_hand.py"
ATTACKED = "tests/guard/test_records_attacked.py"
RECORDS = "tests/rule/test_records.py"
RECORD_CONDITIONS = "tests/telling/test_record_conditions.py"
START_CONDITIONS = "tests/telling/test_match_conditions_of_jobs.py"

PARTS = [
    Part(
        "the selector of what JobSet sets",
        "webhook/questions/admission.py",
        "return [*self.jobset_selectors, *by_execution]",
        "return by_execution",
        "tests/guard/test_wire.py::test_pods_remain_is_423_with_each_pod_its_node_and_what_is_wrong_with_it",
    ),
    Part(
        "the selector of job-id and submission",
        "webhook/questions/admission.py",
        "return [*self.jobset_selectors, *by_execution]",
        "return self.jobset_selectors",
        "tests/guard/test_wire.py::test_a_trainjob_of_seventy_characters_is_handled",
    ),
    Part(
        "the old object's labels",
        "webhook/questions/admission.py",
        "readings = [new] if old is None else [new, old]",
        "readings = [new]",
        "tests/guard/test_wire.py::test_labels_that_are_rewritten_in_the_same_request_hide_no_pod",
    ),
    Part(
        "label values that can be on no pod reach no selector",
        "webhook/questions/admission.py",
        "            if execution.can_be_on_a_pod\n",
        "",
        "tests/guard/test_wire.py::test_a_label_value_with_a_comma_reaches_no_selector",
    ),
    Part(
        "CREATE",
        "webhook/rule/readmission.py",
        "if new.suspended:\n            return NoAdmission()",
        "return NoAdmission()",
        "tests/guard/test_wire.py::test_deleting_and_creating_again_is_a_readmission",
    ),
    Part(
        "raising A",
        "webhook/rule/readmission.py",
        "if new.a > old.a:",
        "if False:",
        "tests/guard/test_wire.py::test_raising_a_while_suspended_is_a_readmission",
    ),
    Part(
        "a pod that is Succeeded or Failed does not block",
        "webhook/rule/verdict.py",
        'TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})',
        "TERMINAL_PHASES: frozenset[str] = frozenset()",
        "tests/guard/test_fail_closed.py::test_terminal_pods_alone_do_not_end_a_list_that_goes_on",
    ),
    Part(
        "Jobs are settled",
        "webhook/questions/admission.py",
        "unsettled += read_unsettled_jobs(page.items, jobset_uid=jobset_uid)",
        "unsettled += []",
        "tests/guard/test_wire.py::test_not_settled_is_423_and_names_what_is_not",
    ),
    Part(
        "the JobSet is settled",
        "webhook/questions/admission.py",
        "return _Orders(tuple(unsettled), lasting_uid=uid)",
        "return _Orders((), lasting_uid=uid)",
        "tests/guard/test_fail_closed.py::test_a_jobset_api_that_is_served_in_another_version_only_is_read_in_that",
    ),
    Part(
        "a JobSet that another TrainJob left is not settled",
        "webhook/questions/admission.py",
        "unsettled = read_unsettled_jobset(document, trainjob_uid=subject.trainjob_uid)",
        "unsettled = [one for one in read_unsettled_jobset(document, trainjob_uid='') if not one.left_over]",
        "tests/guard/test_wire.py::test_what_a_deleted_trainjob_left_is_not_settled_until_it_is_gone",
    ),
    Part(
        "a Job that another JobSet left is not settled",
        "webhook/questions/admission.py",
        "jobset_uid = None if isinstance(jobset, Failure) else jobset.lasting_uid",
        "jobset_uid = None",
        "tests/guard/test_wire.py::test_what_a_deleted_trainjob_left_is_not_settled_until_it_is_gone",
    ),
    Part(
        "the Jobs are read after the JobSet",
        "webhook/questions/admission.py",
        READING_THE_JOBSET + READING_THE_JOBS,
        "    jobset_uid = None\n" + READING_THE_JOBS + READING_THE_JOBSET,
        "tests/guard/test_wire.py::test_a_job_that_is_made_while_the_jobset_is_read_is_seen",
    ),
    Part(
        "the pods are read after the Jobs",
        "webhook/questions/admission.py",
        READING_THE_JOBS + READING_THE_PODS,
        READING_THE_PODS + READING_THE_JOBS,
        "tests/guard/test_wire.py::test_a_pod_that_starts_while_the_chain_is_read_is_seen",
    ),
    Part(
        "a TrainJob that is not suspended is an order",
        "webhook/questions/admission.py",
        "unsettled=tuple(unsettled_trainjob(old))",
        "unsettled=()",
        "tests/guard/test_wire.py::test_raising_a_of_a_trainjob_that_trainer_has_not_started_yet_is_denied",
    ),
    Part(
        "a failed read is no yes",
        "webhook/rule/verdict.py",
        "    if failed:\n        return Unknown(failed)\n",
        "",
        "tests/guard/test_fail_closed.py::test_a_missing_permission_is_named",
    ),
    Part(
        "a list that goes on is read on",
        "webhook/cluster/client.py",
        "            if not following:\n                return\n",
        "            return\n",
        "tests/guard/test_fail_closed.py::test_every_page_of_jobs_is_read",
    ),
    Part(
        "the guard answers before its caller gives up",
        "webhook/guard/application.py",
        "SHARE_OF_TIMEOUT = 0.8",
        "SHARE_OF_TIMEOUT = 1.2",
        "tests/guard/test_fail_closed.py::test_a_read_that_hangs_is_a_denial_before_the_api_server_gives_up",
    ),
    Part(
        "nodes delay a denial by a second at the most",
        "webhook/questions/reads.py",
        "NODE_STATES_SECONDS = 1.0",
        "NODE_STATES_SECONDS = 60.0",
        "tests/guard/test_wire.py::test_nodes_that_cannot_be_read_delay_a_denial_by_no_more_than_a_second",
    ),
    Part(
        "of a CA bundle nothing but the certificates is published",
        "certs/publication.py",
        "b64encode(encoded(certificates_in(bundle)))",
        "b64encode(bundle)",
        "tests/telling/test_registration.py"
        "::test_of_a_bundle_the_certificates_are_registered_and_a_key_beside_them_is_not",
    ),
    Part(
        "a CA file that holds a key is refused",
        "certs/pem.py",
        "    if holds_private_key(content):\n        raise PemError",
        "    if False:\n        raise PemError",
        "tests/certs/test_pem.py::test_a_key_of_every_kind_is_found_and_left_out_of_what_is_read",
    ),
    Part(
        "a variant's Workload is the TrainJob's",
        "webhook/rule/workload.py",
        '    (GROUP, "Workload"): "Workload",\n',
        "",
        "tests/check/test_whose_workload.py::test_a_variant_of_a_trainjobs_workload_waits_and_is_numbered",
    ),
    Part(
        "the Workload of a TrainJob's JobSet is the TrainJob's",
        "webhook/rule/workload.py",
        '    ("jobset.x-k8s.io", "JobSet"): "JobSet",\n',
        "",
        "tests/check/test_whose_workload.py::test_the_workload_of_a_trainjobs_jobset_waits_for_its_pods",
    ),
    Part(
        "what Kueue owns is taken from a Pending check, or it is written for ever",
        "webhook/rule/workload.py",
        "    if after.pod_set_updates or before.pod_set_updates:",
        "    if after.pod_set_updates:",
        "tests/check/test_kueue_story.py::test_a_wait_of_ten_minutes_after_an_eviction_is_one_write",
    ),
    Part(
        "that the history went back is noticed in what a watch tells",
        "webhook/cluster/following.py",
        "heard, went_back = True, is_below(at, remembered)",
        "heard, went_back = True, False",
        "tests/cluster/test_following.py::test_what_a_watch_tells_of_a_lower_version_means_a_new_list",
    ),
    Part(
        "a watch that told nothing may be deaf",
        "webhook/cluster/following.py",
        "goes_on = heard and not went_back and loop.time()",
        "goes_on = not went_back and loop.time()",
        "tests/cluster/test_following.py::test_a_watch_that_told_nothing_is_followed_by_a_list_for_it_may_be_deaf",
    ),
    Part(
        "whether Kueue has a TrainJob is told by its Workload too",
        "webhook/telling/report.py",
        "return queue is not None or any(workload.admits_the_trainjob for workload in workloads)",
        "return queue is not None",
        "tests/verbs/test_kueue.py::test_kueue_has_it_whose_workload_is_its_own_without_a_queue_label",
    ),
    Part(
        "a pod that no Job owns is deleted by nobody",
        "webhook/telling/waiting.py",
        'return pod.owner is None or pod.owner.startswith("Job ")',
        "return True",
        "tests/telling/test_waiting.py::test_a_pod_that_no_job_owns_is_deleted_by_nobody_and_never_by_force",
    ),
    Part(
        "pods of an execution that somebody admitted meanwhile are none of the previous one",
        "webhook/verbs/looking.py",
        "        document, trainjob = later, since\n",
        "        break\n",
        "tests/verbs/test_execution.py::"
        "test_pods_of_an_execution_that_somebody_admitted_meanwhile_are_not_told_as_remaining",
    ),
    Part(
        "what an overloaded API server refuses is asked again once",
        "webhook/cluster/transport.py",
        "response.status == HTTPStatus.TOO_MANY_REQUESTS and wait.isascii()",
        "False and wait.isascii()",
        "tests/cluster/test_overload.py::test_it_is_asked_again_after_the_time_that_the_api_server_names",
    ),
    Part(
        "a network in NO_PROXY exempts what is in it",
        "webhook/cluster/proxy.py",
        "    if network is not None:\n",
        "    if False:\n",
        "tests/cluster/test_proxy.py::test_an_api_server_that_a_network_exempts_is_reached_directly",
    ),
    Part(
        "the advice of the verbs can be typed",
        "webhook/verbs/shorthands.py",
        "        return [arguments[position], *arguments[:position], *arguments[position + 1 :]]\n",
        "        return arguments\n",
        "tests/verbs/test_commands_told.py::test_each_command_runs_as_it_is_told",
    ),
    Part(
        "that nothing is here tells nothing of pods in another cluster",
        "webhook/verbs/looking.py",
        "    if not trainjob.managed_elsewhere or isinstance(",
        "    if True or isinstance(",
        "tests/verbs/test_kueue.py::test_of_pods_in_another_cluster_nothing_is_told_and_nothing_is_admitted",
    ),
    Part(
        "what runs in another cluster is not admitted from here",
        "webhook/verbs/admitting.py",
        "    if trainjob.managed_elsewhere:\n",
        "    if False:\n",
        "tests/verbs/test_kueue.py::test_of_pods_in_another_cluster_nothing_is_told_and_nothing_is_admitted",
    ),
    Part(
        "TrainJobs without the field in which A is looked for are told of",
        "webhook/guard/server.py",
        "lifecycle.warning = lambda: trainer.too_old",
        "lifecycle.warning = lambda: None",
        "tests/guard/test_trainer_watch.py::test_readyz_says_it_behind_its_ok",
    ),
    Part(
        "no fault of printing changes what a write ended with",
        "webhook/verbs/ending.py",
        "    if told.is_data:\n",
        "    if True:\n",
        "tests/verbs/test_exit_codes.py::test_a_release_that_cannot_be_printed_was_made_and_says_so",
    ),
    Part(
        "a denied creation is an event of nothing",
        "webhook/guard/trainjob_reviews.py",
        'distinct=wording.distinct(verdict) if question.is_there else "",',
        "distinct=wording.distinct(verdict),",
        "tests/cluster/test_events.py::"
        "test_a_denied_creation_is_no_event_for_there_is_nothing_that_it_could_be_about",
    ),
    Part(
        "an exec plugin that wishes it is told of the cluster",
        "webhook/cluster/credentials/exec_plugin.py",
        "    if plugin.wants_cluster:\n",
        "    if False:\n",
        "tests/cluster/credentials/test_exec_plugin.py::"
        "test_a_plugin_is_told_of_the_cluster_what_kubectl_tells_it",
    ),
    Part(
        "an exec plugin may ask whoever sits at the terminal",
        "webhook/cluster/credentials/exec_plugin.py",
        "stdin=None if interactive else DEVNULL,",
        "stdin=DEVNULL,",
        "tests/verbs/test_plugins_that_ask.py::"
        "test_what_it_asks_is_seen_and_answered_however_long_that_takes",
    ),
    Part(
        "a Workload is found by its label before all are listed",
        "webhook/cluster/trainjobs.py",
        "        if found or not expected:\n",
        "        if False:\n",
        "tests/verbs/test_kueue.py::test_a_workload_is_found_by_its_label_and_no_other_is_read",
    ),
    Part(
        "a guard whose certificate expired is not ready",
        "certs/files.py",
        "            if now >= certificate.not_valid_after_utc:\n",
        "            if False:\n",
        "tests/guard/test_certificate_files.py::"
        "test_a_guard_whose_certificate_is_not_valid_now_is_not_ready_says_why_and_becomes_so",
    ),
    Part(
        "a process without a home is told so",
        "webhook/cluster/credentials/kubeconfig_files.py",
        "except RuntimeError:  # neither",
        "except ZeroDivisionError:  # neither",
        "tests/verbs/test_who_acts.py::test_without_a_home_and_an_entry_for_the_user_there_is_no_traceback",
    ),
    Part(
        "what is not printable begins no header of its own",
        "webhook/cluster/credentials/impersonation.py",
        "    if not text.isprintable():\n",
        "    if False:\n",
        "tests/cluster/credentials/test_impersonation.py::test_nothing_begins_a_header_of_its_own",
    ),
    Part(
        "whom a kubeconfig acts as is sent",
        "webhook/cluster/credentials/renewal.py",
        "asked.over(chosen.user.impersonation).headers()",
        "asked.headers()",
        "tests/cluster/credentials/test_impersonation.py::test_whom_a_kubeconfig_acts_as_is_sent",
    ),
    Part(
        "what another API server is to see is not shown to this one",
        "webhook/cluster/credentials/renewal.py",
        "if self._material is not None and self._material.endpoint.url != fresh.endpoint.url:",
        "if False:",
        "tests/cluster/credentials/test_choice.py"
        "::test_what_another_api_server_is_to_see_is_not_shown_to_this_one",
    ),
    Part(
        "the context that was found is kept",
        "webhook/cluster/credentials/renewal.py",
        "        self.wanted = replace(self.wanted, context=chosen.context)\n",
        "        _ = replace\n",
        "tests/cluster/credentials/test_choice.py"
        "::test_another_context_that_becomes_current_meanwhile_is_not_meant",
    ),
    Part(
        "in a pod a kubeconfig goes before the ServiceAccount",
        "webhook/cluster/credentials/renewal.py",
        "if in_pod and not named and self.wanted.caller is Caller.SERVICE:",
        "if in_pod and not named:",
        "tests/cluster/credentials/test_choice.py::test_in_a_pod_a_kubeconfig_goes_first",
    ),
    Part(
        "a context of no kubeconfig is refused",
        "webhook/cluster/credentials/renewal.py",
        "if self.wanted.context is not None:",
        "if False:",
        "tests/cluster/credentials/test_choice.py::test_a_context_is_never_ignored",
    ),
    Part(
        "a field that nobody knows is refused",
        "webhook/cluster/credentials/fields.py",
        "if name not in known:",
        "if False:",
        "tests/cluster/credentials/test_fields.py::test_a_field_that_nobody_knows_is_not_passed_over",
    ),
    Part(
        "over plain HTTP a user shows nothing",
        "webhook/cluster/credentials/kubeconfig_user.py",
        "if endpoint.is_secure:",
        "if True:",
        "tests/cluster/credentials/test_fields.py::test_over_plain_http_a_user_shows_nothing",
    ),
    Part(
        "a client key is handed over in memory",
        "certs/private_file.py",
        """        with os.fdopen(os.memfd_create("private-key"), "wb") as memory:
            os.fchmod(memory.fileno(), 0o600)
            memory.write(content)
            memory.flush()
            yield f"/proc/self/fd/{memory.fileno()}"
""",
        """        directory = tempfile.mkdtemp()
        path = Path(directory, "private.pem")
        path.write_bytes(content)
        yield str(path)
""",
        "tests/verbs/test_who_acts.py::test_the_key_of_a_kubeconfig_is_in_no_file",
    ),
    Part(
        "what an exec plugin writes to stderr reaches a person alone",
        "webhook/cluster/credentials/exec_plugin.py",
        "stderr=None if in_person else DEVNULL",
        "stderr=None",
        "tests/cluster/credentials/test_exec_plugin.py"
        "::test_what_a_plugin_writes_to_stderr_reaches_a_person_alone",
    ),
    Part(
        "a wait ends when its credentials are refused for good",
        "webhook/verbs/looking.py",
        "            except Unauthenticated:\n                raise\n",
        "",
        "tests/verbs/test_who_acts.py::test_a_wait_for_an_api_server_that_is_not_trusted_ends",
    ),
    Part(
        "a start waits for a pod that is Terminating",
        "webhook/rule/starts.py",
        '    if text(metadata, "deletionTimestamp", "pod"):\n        return True\n',
        "",
        ANOTHER_START,
    ),
    Part(
        "a start waits for a pod of another JobSet of the name",
        "webhook/rule/starts.py",
        '    if text(labels, JOBSET_UID_LABEL, "pod") != start.jobset_uid:\n        return True\n',
        "",
        ANOTHER_START,
    ),
    Part(
        "a template that was relabelled makes no pods of a JobSet before those of this start",
        "webhook/rule/starts.py",
        '    if job.start.jobset_uid not in ("", uid):\n',
        "    if False:\n",
        f"{BY_HAND}::test_pods_of_a_jobset_before_become_none_of_this_start_by_a_label_of_the_template[sandbox]",
    ),
    Part(
        "the labels of a Job stay when its status is written",
        "webhook/telling/registration.py",
        '            _rule(["batch"], ["v1"], ["jobs/status"], operations=["UPDATE"]),\n',
        "",
        f"{BY_HAND}::test_no_way_takes_the_label_away_that_a_job_is_found_by[sandbox-patched-status]",
    ),
    Part(
        "a pod without grace whose JobSet is gone is kept where its kubelet does not answer",
        "webhook/rule/records.py",
        "isinstance(node, Kept) and node.answers",
        "isinstance(node, Kept)",
        "tests/guard/test_records_of_controllers.py"
        "::test_those_on_a_lost_node_are_kept_for_nobody_can_tell_whose_they_were[sandbox]",
    ),
    Part(
        "a start waits for a pod of another restart",
        "webhook/rule/starts.py",
        '    if text(labels, RESTART_ATTEMPT_LABEL, "pod") != start.restart_attempt:\n        return True\n',
        "",
        ANOTHER_START,
    ),
    Part(
        "a start waits for a pod of an earlier Job of the name",
        "webhook/rule/starts.py",
        "    return name == start.job_name and not",
        "    return False and name == start.job_name and not",
        ANOTHER_START,
    ),
    Part(
        "a start waits for a pod of an earlier Job that chooses its pods itself",
        "webhook/rule/starts.py",
        "        name, uid = _controlling_job(metadata)\n",
        "        pass\n",
        ANOTHER_START,
    ),
    Part(
        "a start waits for Jobs of other starts",
        "webhook/questions/start.py",
        "unsettled += read_unsettled_jobs(page.items, jobset_uid=jobset_uid)",
        "unsettled += []",
        "tests/guard/test_job_reviews.py::test_a_job_of_another_start_that_is_not_stopped_denies",
    ),
    Part(
        "an order that is out of date starts nothing",
        "webhook/questions/start.py",
        "    if jobset.out_of_date is not None:",
        "    if False:",
        "tests/guard/test_job_reviews.py::test_an_order_that_is_out_of_date_is_denied",
    ),
    Part(
        "a start's pods are read after its Jobs",
        "webhook/questions/start.py",
        READING_THE_JOBS_OF_OTHER_STARTS + READING_THE_PODS_OF_OTHER_STARTS,
        READING_THE_PODS_OF_OTHER_STARTS + READING_THE_JOBS_OF_OTHER_STARTS,
        "tests/questions/test_start.py::test_each_read_begins_when_the_one_before_it_is_answered",
    ),
    Part(
        "of a start's pods every page is read",
        "webhook/questions/start.py",
        "        names += pods_of_another_start(page.items, subject.job.start)\n",
        "        names += pods_of_another_start(page.items, subject.job.start)\n        break\n",
        "tests/questions/test_start.py::test_every_page_of_pods_is_read_for_the_last_may_hold_one",
    ),
    Part(
        "a Job whose JobSet cannot be read is not made",
        "webhook/questions/start.py",
        "        return OfATrainJob(None, Unknown((jobset,)))",
        "        return NotATrainJobs()",
        "tests/guard/test_job_reviews.py::test_a_job_that_is_made_suspended_needs_its_jobset_read",
    ),
    Part(
        "podReplacementPolicy is set",
        "webhook/rule/starts.py",
        "    if not job.leaves_replacement and job.replacement != REPLACED_ONCE_ENDED:",
        "    if False:",
        "tests/rule/test_starts.py::test_what_is_set_on_a_job",
    ),
    Part(
        "a Job that runs keeps the policy that was set",
        "webhook/rule/starts.py",
        "    return hastened and not new.leaves_replacement\n",
        "    return False\n",
        "tests/guard/test_job_reviews.py::test_a_rank_is_replaced_no_sooner_by_an_edit_of_its_job",
    ),
    Part(
        "a policy that is taken back calls the guard",
        "webhook/telling/conditions.py",
        """        f"{_replaced_once_ended('oldObject')} && !({_replaced_once_ended('object')})",\n""",
        "",
        f"{START_CONDITIONS}::test_nothing_that_is_denied_or_set_escapes_the_guard",
    ),
    Part(
        "a Job that runs with the policy as it was calls no guard",
        "webhook/telling/conditions.py",
        """ && !({_replaced_once_ended('object')})",\n""",
        """",\n""",
        f"{START_CONDITIONS}::test_what_starts_nothing_of_a_jobset_does_not_depend_on_the_guard",
    ),
    Part(
        "no grace period of 0",
        "webhook/rule/starts.py",
        "    if job.pods_without_grace and operation is Operation.CREATE:",
        "    if False:",
        "tests/rule/test_starts.py::test_what_is_set_on_a_job",
    ),
    Part(
        "a Job that belongs to another JobSet than its label says starts nothing",
        "webhook/guard/job_reviews.py",
        '        if new.jobset_name and new.controlling_jobset not in ("", new.jobset_name):',
        "        if False:",
        "tests/guard/test_job_reviews.py::test_the_label_of_a_bare_jobset_starts_no_job_of_another_unseen",
    ),
    Part(
        "the labels that a Job is found by stay",
        "webhook/rule/starts.py",
        '    return any(text(before, label, "Job") != text(after, label, "Job") for label',
        "    return False and any(1 for label",
        "tests/guard/test_job_reviews.py::test_the_labels_that_a_job_is_found_by_stay",
    ),
    Part(
        "a Job's JobSet name that there cannot be reaches no selector",
        "webhook/guard/job_reviews.py",
        "        if not is_label_value(jobset_name):",
        "        if False:",
        "tests/guard/test_job_reviews.py"
        "::test_a_jobset_name_that_there_cannot_be_is_a_bad_request_and_asks_nothing",
    ),
    Part(
        "a record is kept while its node is neither gone nor out of service",
        "webhook/rule/records.py",
        "    return Kept(state)\n",
        '    return Ended("")\n',
        f"{ATTACKED}::test_the_record_is_kept[sandbox-deletion]",
    ),
    Part(
        "a kubelet is known by its group, and nobody by a name",
        "webhook/telling/conditions.py",
        "'{KUBELETS}' in {groups})",
        "request.userInfo.username.startsWith('system:'))",
        f"{ATTACKED}::test_the_record_is_kept[sandbox-status, by pod-GC]",
    ),
    Part(
        "a phase that says it ended ends the record",
        "webhook/rule/records.py",
        "    if _phase(new) in TERMINAL_PHASES:\n",
        "    if False:\n",
        f"{ATTACKED}::test_the_record_is_kept[sandbox-status, merged]",
    ),
    Part(
        "an eviction without time ends the record",
        "webhook/guard/record_reviews.py",
        "        if grace > 0:\n",
        "        if True:\n",
        f"{ATTACKED}::test_the_record_is_kept[sandbox-eviction]",
    ),
    Part(
        "the labels of a pod stay",
        "webhook/rule/records.py",
        "        ways.append(Way.LABELS)\n",
        "        pass\n",
        f"{ATTACKED}::test_no_way_takes_a_label_away",
    ),
    Part(
        "the index of a pod stays",
        "webhook/rule/records.py",
        "        ways.append(Way.INDEX)\n",
        "        pass\n",
        f"{ATTACKED}::test_no_way_loses_the_rank_of_a_pod[sandbox-another index]",
    ),
    Part(
        "the Job of a pod stays",
        "webhook/rule/records.py",
        "        ways.append(Way.OWNER)\n",
        "        pass\n",
        f"{ATTACKED}::test_no_way_loses_the_rank_of_a_pod[sandbox-another Job]",
    ),
    Part(
        "a pod's index that changes calls the guard",
        "webhook/telling/conditions.py",
        """        f"{updated} && !({_same(COMPLETION_INDEX, 'annotations')})",\n""",
        "",
        f"{RECORD_CONDITIONS}::test_what_a_rank_is_known_by_calls_where_it_changes",
    ),
    Part(
        "a pod that is given to another Job calls the guard",
        "webhook/telling/conditions.py",
        """        f"{updated} && {_given_to_another()}",\n""",
        "",
        f"{RECORD_CONDITIONS}::test_what_a_rank_is_known_by_calls_where_it_changes",
    ),
    Part(
        "a pod that is orphaned or adopted calls no guard",
        "webhook/rule/records.py",
        "    if any(owner != other for owner in _controllers(before) for other in _controllers(now)):\n",
        "    if _controllers(before) != _controllers(now):\n",
        RECORDS + "::test_a_pod_that_one_job_controls_is_given_to_no_other",
    ),
    Part(
        "the pods of a JobSet that lost its TrainJob are kept",
        "webhook/rule/records.py",
        "not is_made_by_trainer(jobset) and not record.of_an_execution",
        "True",
        f"{ATTACKED}::test_the_record_is_kept[sandbox-deletion, of what lost its TrainJob]",
    ),
    Part(
        "the pods of a JobSet whose name another one took are kept",
        "webhook/rule/records.py",
        '    if record.jobset_uid not in ("", uid):\n',
        "    if False:\n",
        RECORDS + "::test_whose_pod_it_is",
    ),
    Part(
        "a node that is Ready is not down for a taint",
        "webhook/rule/records.py",
        'if state.out_of_service and state.ready != "True":',
        "if state.out_of_service:",
        f"{ATTACKED}::test_a_taint_of_a_node_that_answers_ends_nothing",
    ),
    Part(
        "a reason names its node as a word of its own",
        "webhook/rule/records.py",
        "if re.search(name, self.may_end_because, re.IGNORECASE)",
        "if self.node in self.may_end_because",
        RECORDS + "::test_a_reason_names_the_node_that_somebody_looked_at",
    ),
    Part(
        "a record whose node cannot be read is kept",
        "webhook/questions/record.py",
        "    return OfATrainJobsPod(record, trainjob, Untold(failures))\n",
        '    return OfATrainJobsPod(record, trainjob, Ended(""))\n',
        "tests/guard/test_record_reviews.py::test_what_cannot_be_told_is_denied",
    ),
    Part(
        "every Job that is made calls the guard",
        "webhook/telling/conditions.py",
        """"could-start-pods", "expression": "\\n|| ".join(ways)}]""",
        """"could-start-pods", "expression": f"oldObject != null && ({' || '.join(ways)})"}]""",
        f"{START_CONDITIONS}::test_what_could_start_pods_is_sent_to_the_guard",
    ),
    Part(
        "A that would fall is kept",
        "webhook/rule/numbering.py",
        "return Fall(old.a, new.a)",
        "return None",
        "tests/guard/test_number_reviews.py::test_a_stays_and_the_next_admission_has_the_next_number",
    ),
    Part(
        "A that falls in a runtime patch calls the guard",
        "webhook/telling/conditions.py",
        "        a_patch_had_it,\n",
        "",
        "tests/telling/test_number_conditions.py::test_no_update_that_lets_a_fall_escapes_the_guard",
    ),
    Part(
        "a number is compared as a number",
        "webhook/telling/conditions.py",
        "? int(a) > kept :",
        "? int(a) != kept :",
        "tests/telling/test_number_conditions.py::test_what_lets_nothing_fall_does_not_depend_on_the_guard",
    ),
    Part(
        "a runtime patch without A calls no guard",
        "webhook/telling/conditions.py",
        """where=lambda template: _holds(template, key)""",
        '''where=lambda template: "true"''',
        "tests/guard/test_without_a_guard.py::test_an_entry_that_kueue_emptied_is_empty",
    ),
    Part(
        "A that is written into a runtime patch calls the guard",
        "webhook/telling/conditions.py",
        """where=lambda template: _holds(template, key)""",
        '''where=lambda template: "false"''',
        "tests/telling/test_match_conditions.py::"
        "test_no_update_that_admits_or_is_a_bad_request_escapes_the_guard",
    ),
    Part(
        "a Job that is un-suspended calls the guard",
        "webhook/telling/conditions.py",
        """f"{_suspended('oldObject')} && !({_suspended('object')})",\n        *(f"!""",
        """*(f"!""",
        f"{START_CONDITIONS}::test_what_could_start_pods_is_sent_to_the_guard",
    ),
    Part(
        "what doctor could not see is not sound",
        "webhook/diagnosis/finding.py",
        "        return None if self.not_seen else True",
        "        return True",
        "tests/diagnosis/test_findings.py::test_what_could_not_be_seen_is_a_line_of_its_own",
    ),
    Part(
        "a read of doctor's that fails is told",
        "webhook/verbs/examining.py",
        """        except ReadFailedError as error:
            self.failures.append(error.failure)
""",
        """        except ReadFailedError:
            pass
""",
        "tests/verbs/test_doctor.py::test_an_api_that_is_not_served_is_told",
    ),
    Part(
        "a rank that waits for its lost predecessor is told of",
        "webhook/diagnosis/diagnosis.py",
        "    training.ranks,\n",
        "",
        "tests/diagnosis/test_findings.py::"
        "test_a_rank_that_waits_for_its_lost_predecessor_is_told_of_though_its_trainjob_runs",
    ),
    Part(
        "a dry run that is let through is a finding",
        "webhook/diagnosis/registrations.py",
        """        if probe.code < 300:  # noqa: PLR2004
""",
        """        if False:
""",
        "tests/diagnosis/test_findings.py::test_what_a_dry_run_tells",
    ),
    Part(
        "a denial of another webhook is no answer of the guard's",
        "webhook/verbs/calling.py",
        """        if webhook not in message:
            raise
""",
        "",
        "tests/verbs/test_doctor.py::test_a_viewer_may_not_have_it_tried_and_is_told_what_that_takes",
    ),
    Part(
        "a guard that no call can reach is not ready",
        "webhook/guard/server.py",
        "        lifecycle.why_uncallable = gates.why_uncallable\n",
        "",
        f"{CALLS}::test_a_configuration_that_comes_to_call_another_name_takes_the_guard_out_and_back_in",
    ),
    Part(
        "a guard stays ready while one call fits",
        "webhook/telling/calls.py",
        "        if goes_elsewhere or is_among(call.host, names):\n",
        "        if goes_elsewhere:\n",
        "tests/telling/test_calls.py"
        "::test_one_call_that_fits_is_reason_enough_to_stay_ready_and_the_others_are_told",
    ),
    Part(
        "what cannot be read makes no guard unready",
        "webhook/guard/gate.py",
        """        if len(self._calls) < len(self._shipped):
            return None
""",
        "",
        f"{CALLS}::test_a_configuration_that_cannot_be_read_makes_no_guard_unready",
    ),
]


@pytest.mark.parametrize("part", [*PARTS, *FAULTS], ids=lambda part: part.name)
def test_each_part_and_its_test_stand_where_they_are_said_to(part: Part) -> None:
    taken_away(part.module, part.written, part.without)
    file, _, test = part.test.partition("::")
    assert f"def {test.partition('[')[0]}(" in (REPOSITORY / file).read_text()


@pytest.mark.prove
@pytest.mark.parametrize("part", [*PARTS, *FAULTS], ids=lambda part: part.name)
def test_without_a_part_of_the_rule_its_test_goes_red(part: Part, tmp_path: Path) -> None:
    mutate(tmp_path, part.module, part.written, part.without)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", part.test],
        cwd=tmp_path,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ran.returncode == FAILED, ran.stdout[-3000:]
