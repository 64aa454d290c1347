"""Floor 4: generate -> evaluate -> update. One asyncio controller, three pumps, one ledger, one watchdog.

    generate pump   takes a permit, asks the curriculum for a task, plays n rollouts of it, scores them while their
                    environments are open
    evaluate pump   takes generated groups, runs the filters: some rollouts are masked, then ready | dropped(reason)
    update pump     takes the next B tickets in order, trains what is ready, version + 1, loads, gives permits back
    watchdog        promotes, cancels or goes without what a wait has lasted for too long, before its deadline ends the
                    run with its name

Environment work and generation run on the event loop; everything that blocks (the optimiser step, saving) runs in one
thread of its own, so the three overlap when `lag` allows it.

Events
------
Everything that a reader of a run may want to know is told through `core.events`. Numbers are per event; `_s` is
seconds, `_share` is 0..1. A key is left out, or None, where there is nothing to say.

    run.started         run, recipe, seed, model, rule, loss, updates, groups_per_update, group_size, lag,
                        max_staleness
    run.resumed         the same keys and checkpoint (its name; empty for none), version, update (it begins behind it),
                        replayed (updates that are trained again from what is stored), kept (finished rollouts of
                        tickets that no update took), again (rollouts that are played again)
    replayed.NAME       a fact that the ledger held before the run was interrupted, told again with the same keys; to
                        be counted once: coldstart.demos, coldstart.update, group.*, batch.taken, update.*,
                        weights.published
    stage.started       stage ("evaluation" | "demonstrations" | "coldstart" | "rl"), label, total (units of progress)
    stage.done          stage, label, seconds_s

    evaluation.progress label, done, total, solved
    evaluation.done     label ("untouched", "coldstart", "update-10", "final" ...), version, update, solved, total,
                        unscored (infra, env or grader failures: in neither count), solved_share, low_share, high_share
                        (95 % Wilson), reward_mean, tokens, seconds_s, temperature, and for every level and family
                        level.NAME.solved, level.NAME.total, family.NAME.solved, family.NAME.total; one that an
                        interruption left in the middle is told when it is whole, once
    coldstart.demos     tried, kept, wrong, failed, families, tokens, seconds_s
    coldstart.update    update (1..updates), updates, epoch, version, loss, grad_norm, lr, tokens_trained, seconds_s,
                        skipped (True when the gradient was not finite)

    group.admitted      group, ticket, task, family, level, version, outstanding, permits, number (of the task in its
                        split), cursor (of the curriculum behind it), skipped_tasks (passed over to find this one)
    rollout.done        group, rollout, index, attempt, task, family, level, split, status, origin, type, message,
                        reward, turns, tokens (sampled), context_tokens, generate_s, env_s, score_s,
                        retried (True when another attempt follows)
    group.ready         group, ticket, task, family, level, rollouts, valid, reward_mean, solved_share, tokens,
                        seconds_s, masked.REASON (valid rollouts that do not train, by the filter that left them out)
    group.dropped       the same keys and reason ("zero_variance" | "singleton" | "min_valid" | "failed" | "stale"
                        | "skipped": its update changed nothing | "cancelled" | "late" | "overlong" | "void_turn"
                        | "duplicate" | "unprobed")
    group.trained       group, ticket, version (the one it made), staleness

    group.branched      group, ticket, and what branching did: forks, probes, independent (rollouts in place of forks),
                        looks, look_tokens, snapshots (taken), snapshots_held and snapshot_bytes (the most at a time),
                        refused.REASON (rollouts that did not begin)
    branching.fell_back group, task (the first of a world that cannot be forked; told once)

    breaker.opened      family (gets no new tickets), group (that was one too many), failures (in a row), message
                        (of the last one), cool_down_tickets (that close before one is tried again)
    breaker.closed      family, group (in which a rollout worked again)

    batch.taken         update, version (before), tickets (in the update's order: "3,4,5"), trains (those of them that
                        are ready)
    update.started      update (1..updates), version (before), groups, tickets
    weights.published   update, version (that the engine serves from now on), seconds_s (publishing and loading)
    update.done         update, updates, version (after), groups, dropped, rollouts, reward_mean, reward_std,
                        skipped_tasks (of the batch's tickets), pools.unplayed, pools.hopeless, pools.mixed,
                        pools.mastered (kinds of task met so far, where the curriculum keeps pools),
                        breaker.open (families without new tickets, when there are any),
                        solved_share (rollouts whose main part reached the bar, dropped groups included),
                        dropped.REASON (groups), masked.REASON (rollouts that do not train, dropped groups included),
                        loss, grad_norm, lr, tokens_trained, tokens_generated, tokens_per_s (generated),
                        tokens_sampled (of the batch, failed attempts, probes and looks included), branching.* (as in
                        group.branched, summed over the groups; of what is held the most),
                        skew_mean, skew_max (nats between recorded log-probs and the learner's own, of one version),
                        staleness (worst trained token), staleness_mean, stale_tokens (sampled ones of its groups that
                        are past the bound and do not train, where `on_stale` masks them), turns_mean, tokens_mean
                        (sampled per rollout),
                        failed (rollouts that ended in error), retries, truncated_share, update_s (in the learner),
                        seconds_s (since the update before, done or skipped, an evaluation between the two included),
                        eta_s (seconds to the last update, at this pace),
                        regime ("generate" | "env" | "score" | "update": the busiest stage),
                        generate_idle_share, env_idle_share, score_idle_share, update_idle_share,
                        skipped (True when the gradient was not finite), stat.NAME for what the loss reports, and for
                        trained tokens of every age (versions since they were sampled) before the step: age.N.tokens,
                        age.N.ratio (mean), age.N.kl (k3, nats), age.N.ess (effective sample size, share of tokens)
    update.skipped      update, updates, version, dropped, skipped_tasks, dropped.*, masked.*, pools.* as above,
                        solved_share, reward_mean, seconds_s, reason ("empty")
    checkpoint.saved    update, version, path, seconds_s
    checkpoint.best     label (of the evaluation that no version did better in), update, version, solved, total,
                        solved_share, path (it stays until another one is the best)
    run.took_back       version (whose weights the run ends with), from_version (the last one), label (of the evaluation
                        that no version did better in), solved, total
    memory.planned      budget_gb, fixed_gb, fixed.PART_gb, cache_gb, kv_tokens, work_gb, tokens_per_pack
    memory.relieved     who ("engine" | "learner"), resident_gb, budget_gb, and freed_gb and evicted, or tokens_per_pack
    wait.expired        what (who waited for what, for how long), action
    watchdog.acted      wait (who waited), for (what for), since_s (so many seconds), action ("promote" | "cancel" |
                        "shrink" | "restart")
    run.stopping        reason, and update where reinforcement learning stops
    run.done            reason ("done" | "interrupted"), updates (done), version, seconds_s, peak_rss_gb
    run.failed          type, message (of the error), version, seconds_s, peak_rss_gb

The last two count what was done with a cassette since the run began or was resumed, where there is one:
cassette.recorded (answers that are new on it), cassette.differing (those of them that are unlike the first answer to
the same history), cassette.replayed, cassette.missed (answers that were asked for and are not on it). Where snapshots
were asked for, they have snapshots_taken, _freed, _held, _bytes, _peak_held, _peak_bytes and snapshots_refused.REASON.
"""
