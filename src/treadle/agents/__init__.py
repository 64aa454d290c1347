"""Floor 3: playing tasks. Rollouts, groups of them, demonstrations; what they may cost and what they are paid.

    GroupPlayer  one ticket: n rollouts at once, retries, the shared prompt
    `-- Player   one rollout: Host <-> messages <-> Renderer <-> ids <-> Generate, recorded in a Group
    Demonstrator the same with scripted turns

Nothing here knows an engine, an algorithm or a schedule.
"""
