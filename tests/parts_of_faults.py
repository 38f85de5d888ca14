"""Parts that mend what people met: what is written without each, and the test that then goes red."""

from __future__ import annotations

from tests.mutants import Part

FAULTS = [
    Part(
        "a watch that went back means a new list",
        "webhook/cluster/following.py",
        "heard, went_back = True, is_below(at, remembered)",
        "heard, went_back = True, False",
        "tests/cluster/test_following.py::test_what_a_watch_tells_of_a_lower_version_means_a_new_list",
    ),
    Part(
        "a list that went back is told",
        "webhook/cluster/following.py",
        "    went_back = is_below(version, remembered)\n",
        "    went_back = False\n",
        "tests/cluster/test_following.py::test_a_list_of_a_lower_version_is_told_to_have_gone_back",
    ),
    Part(
        "what Kueue has is told by its Workload",
        "webhook/telling/report.py",
        "    return queue is not None or any(workload.admits_the_trainjob for workload in workloads)\n",
        "    return queue is not None\n",
        "tests/verbs/test_kueue.py::test_kueue_has_it_whose_workload_is_its_own_without_a_queue_label",
    ),
    Part(
        "what no Job owns nobody deletes",
        "webhook/telling/steps.py",
        '    return "owned" if pod.owner else "unowned"\n',
        "    return of_a_job\n",
        "tests/telling/test_waiting.py::test_a_pod_that_no_job_owns_is_deleted_by_nobody_and_never_by_force",
    ),
    Part(
        "a denied creation is no event",
        "webhook/guard/trainjob_reviews.py",
        "            is_there = request.old_object is not None\n",
        "            is_there = True\n",
        "tests/cluster/test_events.py"
        "::test_a_denied_creation_is_no_event_for_there_is_nothing_that_it_could_be_about",
    ),
    Part(
        "pods of whoever won are none of the execution before",
        "webhook/verbs/looking.py",
        "if (since.suspended, since.a, since.uid) == (trainjob.suspended, trainjob.a, trainjob.uid):",
        "if True:",
        "tests/verbs/test_execution.py"
        "::test_pods_of_an_execution_that_somebody_admitted_meanwhile_are_not_told_as_remaining",
    ),
    Part(
        "what does not fit into a line is no table",
        "webhook/verbs/screen.py",
        "    if sum(columns) + _GAP * (len(columns) - 1) <= width:\n",
        "    if True:\n",
        "tests/verbs/test_wait_in_a_terminal.py::test_names_and_commands_never_fold",
    ),
    Part(
        "a 429 is asked again",
        "webhook/cluster/transport.py",
        "is_told = response.status == HTTPStatus.TOO_MANY_REQUESTS and",
        "is_told = False and",
        "tests/cluster/test_overload.py::test_it_is_asked_again_after_the_time_that_the_api_server_names",
    ),
    Part(
        "a network is exempt from the proxy",
        "webhook/cluster/proxy.py",
        "        return server.address is not None and server.address in network\n",
        "        return False\n",
        "tests/cluster/test_proxy.py::test_the_proxy_is_chosen_by_go_s_rules",
    ),
    Part(
        "a plugin that has to ask is refused where nobody is",
        "webhook/cluster/credentials/exec_plugin.py",
        '    if plugin.interactive == "Always" and not on_a_terminal:\n',
        "    if False:\n",
        "tests/cluster/credentials/test_exec_plugin.py"
        "::test_where_nobody_can_be_asked_a_plugin_that_has_to_ask_is_refused_in_words",
    ),
    Part(
        "options stand before the verb, as they are advised",
        "webhook/verbs/shorthands.py",
        "behind_the_command(split(args), set(self.commands), takes_value))",
        "split(args) if takes_value else args)",
        "tests/verbs/test_command_line.py::test_options_stand_before_or_behind_the_verb",
    ),
    Part(
        "the pods of MultiKueue's TrainJobs are in another cluster",
        "webhook/rule/trainjob.py",
        '        return "" if self.managed_by in ("", TRAINER) else self.managed_by\n',
        '        return ""\n',
        "tests/verbs/test_kueue.py::test_of_pods_in_another_cluster_nothing_is_told_and_nothing_is_admitted",
    ),
    Part(
        "a Trainer that is too old is told",
        "webhook/guard/trainer_watch.py",
        "            self.too_old = finding.what\n",
        "            self.too_old = None\n",
        "tests/guard/test_trainer_watch.py::test_readyz_says_it_behind_its_ok",
    ),
    Part(
        "a Workload that its label finds is found without reading them all",
        "webhook/cluster/trainjobs.py",
        "        if found or not expected:\n",
        "        if False:\n",
        "tests/verbs/test_kueue.py::test_a_workload_is_found_by_its_label_and_no_other_is_read",
    ),
    Part(
        "what cannot be printed changes no exit code of a write",
        "webhook/verbs/ending.py",
        """this could not be printed: {fault}")
    return told.code
""",
        """this could not be printed: {fault}")
    return ExitCode.NOT_NOW
""",
        "tests/verbs/test_exit_codes.py::test_a_release_that_cannot_be_printed_was_made_and_says_so",
    ),
    Part(
        "an expired certificate is told",
        "certs/files.py",
        "            if now >= certificate.not_valid_after_utc:\n",
        "            if False:\n",
        "tests/certs/test_files.py::test_dates_are_told_of_each_certificate_on_the_way_to_who_is_trusted",
    ),
    Part(
        "without a home directory there is no kubeconfig, and no traceback",
        "webhook/cluster/credentials/kubeconfig_files.py",
        "        except RuntimeError:  # neither HOME nor an entry for the user in the passwd file\n",
        "        except KeyError:\n",
        "tests/cluster/credentials/test_choice.py"
        "::test_without_a_home_directory_there_is_no_kubeconfig_and_no_traceback",
    ),
]
