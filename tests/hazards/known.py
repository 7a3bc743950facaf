"""Seeded faults that the simulator does not find yet, and why. One that is found must leave this table."""

KNOWN = {
    "scratch_never_written": "uninitialised global memory is not looked for",
    "scratch_last_element_not_written": "uninitialised global memory is not looked for",
    "output_added_to_but_not_zeroed": "uninitialised global memory is not looked for",
    "output_atomics_without_zero": "uninitialised global memory is not looked for",
    "padding_of_a_row_read": "uninitialised global memory is not looked for",
    "broadcast_without_barrier": "a read by all at one address, guarded by warp: the report itself fails (IndexError)",
    "write_after_write_two_warps": "two warps that write in the same step are not compared",
    "named_barriers_differ": "races are not looked for in kernels with barriers of part of the block",
    "no_syncwarp_neighbour": "order within a warp is not looked at",
    "no_syncwarp_reduction": "order within a warp is not looked at",
    "lanes_write_one_word": "order within a warp is not looked at",
    "async_overwritten_before_landing": "a store into a place that cp.async fills is not looked at",
    "mask_without_the_caller": "a mask without the calling lane is not looked at",
    "shuffle_from_a_lane_not_there": "shuffling from a lane that does not take part is not looked at",
    "mbarrier_never_complete": "unsupported opcode mbarrier.init.shared.b64",
}
