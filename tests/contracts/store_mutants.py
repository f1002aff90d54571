"""Faults of stores: (what, the law that is meant for it, [(text of the reference store, text instead)])."""

Fault = tuple[str, str, list[tuple[str, str]]]

_STORED = "self.objects[name] = header + bytes(slot)"
_MISS = "        if data is None:\n            return End(Outcome.MISS)"
_LATE = "            return End(Outcome.LATE)"
_ENDS = "            ends = [self.do"
_DONE = "self.done.append(Completion("

STORE_FAULTS: list[Fault] = [
    # writing
    (
        "visible before it is whole",
        "test_A27_reader_sees_whole_or_miss",
        [(_STORED, f"self.objects[name] = header + bytes(slot)[:99]; time.sleep(0.002); {_STORED}")],
    ),
    (
        "a replaced chunk is gone for a moment",
        "test_A27_reader_of_a_replaced_chunk",
        [(_STORED, f"self.objects.pop(name, None); time.sleep(0.01); {_STORED}")],
    ),
    ("short write", "test_round_trip", [(_STORED, "self.objects[name] = header + bytes(slot)[:-1]")]),
    (
        "done before it is written",
        "test_round_trip",
        [(_STORED, "threading.Timer(0.05, self.objects.__setitem__, (name, header + bytes(slot))).start()")],
    ),
    (
        "keeps a view of the slot instead of a copy",
        "test_save_copies",
        [
            (_STORED, "self.objects[name] = (header, slot, self)"),
            (
                "data = self.objects.get(name)\n",
                "data = self.objects.get(name)\n        data = data and data[0] + data[1]\n",
            ),
            ("header = chunkfile.pack(name[1], self.space, slot,", "header = chunkfile.pack(name[1], self.space, b'',"),
            (
                "            chunkfile.check(header, name[1], self.space, len(data), len(data))\n"
                "            chunkfile.check_payload(header, payload)\n",
                "",
            ),
        ],
    ),
    ("a save destroys its slot", "test_save_only_reads", [(_STORED, f"{_STORED}; slot[:8] = bytes(8)")]),
    (
        "overwrites what is there",
        "test_C13_second_save_is_kept",
        [("if old is not None and not", "if False and not")],
    ),
    (
        "ignores replace",
        "test_replace_puts_the_new_one_in_place",
        [('not (batch.replace and old[8:10] == b"\\1\\0")', "True")],
    ),
    ("says FAILED where it means KEPT", "test_C13_second_save_is_kept", [("Outcome.KEPT", "Outcome.FAILED")]),
    (
        "says KEPT and writes all the same",
        "test_C13_other_bytes_under_a_key_are_never_mixed",
        [
            (
                "            return End(Outcome.KEPT)",
                "            self.objects[name] = chunkfile.pack(name[1], self.space, slot) + bytes(slot)\n"
                "            return End(Outcome.KEPT)",
            )
        ],
    ),
    ("takes chunks above max_chunk_bytes", "test_max_chunk_bytes", [("slot.nbytes > LIMIT", "False")]),
    # reading
    (
        "a miss zero-fills",
        "test_a_miss_leaves_its_slot_alone",
        [(_MISS, _MISS.replace("return", "slot[:] = bytes(slot.nbytes)\n            return"))],
    ),
    ("a miss claims a hit", "test_A13_each_chunk_has_its_own_outcome", [(_MISS, _MISS.replace("MISS", "DONE"))]),
    ("a miss is a failure", "test_a_miss_leaves_its_slot_alone", [(_MISS, _MISS.replace("MISS", "FAILED"))]),
    (
        "lengths are rounded up",
        "test_exact_lengths",
        [("return End(Outcome.DONE, payload.nbytes,", "return End(Outcome.DONE, -(-payload.nbytes // 512) * 512,")],
    ),
    (
        "clears the rest of the slot",
        "test_beyond_the_length_nothing_is_written",
        [
            (
                "        slot[: payload.nbytes] = payload\n",
                "        slot[:] = bytes(payload) + bytes(slot.nbytes - payload.nbytes)\n",
            )
        ],
    ),
    (
        "loads into the slot next door",
        "test_any_order_any_slot",
        [("slot = self.region.slot(batch.slots[at],", "slot = self.region.slot(batch.slots[0] + at + (at > 2),")],
    ),
    (
        "overruns the room",
        "test_room_is_respected",
        [
            ('        if payload.nbytes > slot.nbytes:\n            return End(Outcome.MISS, reason="room")\n', ""),
            (
                "slot = self.region.slot(batch.slots[at], batch.lengths[at])",
                "slot = self.region.slot(batch.slots[at], batch.lengths[at] if batch.op is Op.SAVE else 32768)",
            ),
        ],
    ),
    (
        "FIND always says yes",
        "test_find_is_true",
        [("Outcome.DONE if name in self.objects else Outcome.MISS", "Outcome.DONE")],
    ),
    (
        "FIND never says yes",
        "test_find_is_true",
        [("Outcome.DONE if name in self.objects else Outcome.MISS", "Outcome.MISS")],
    ),
    (
        "outcomes in the wrong order",
        "test_A13_each_chunk_has_its_own_outcome",
        [
            (
                "            outcomes, *loaded",
                "            ends.sort(key=lambda end: end.outcome)\n            outcomes, *loaded",
            )
        ],
    ),
    ("layouts are lost", "test_layouts_and_generated_travel", [("layout=layout,", "layout=self.context.layout.text,")]),
    ("generated counts are lost", "test_layouts_and_generated_travel", [("generated=made", "generated=0")]),
    (
        "one's own layout is not written out",
        "test_a_reader_learns_the_writers_layout",
        [(" or self.context.layout.text\n        made", "\n        made")],
    ),
    (
        "keys are cut",
        "test_A14_strange_keys_stay_apart",
        [("(self.space, key)) for at", "(self.space, key[:31] + bytes(1))) for at")],
    ),
    ("moved is made up", "test_moved_counts_bytes", [("sum(moved)", "1000")]),
    # integrity
    (
        "payloads are not checked",
        "test_A30_flipped_payload",
        [("            chunkfile.check_payload(header, payload)\n", "")],
    ),
    ("the key inside is not checked", "test_A30_swapped", [("check(header, name[1],", "check(header, header.key,")]),
    (
        "the namespace inside is not checked",
        "test_A30_object_of_another_namespace",
        [("name[1], self.space, len(data)", "name[1], header.namespace, len(data)")],
    ),
    (
        "bytes behind the chunk are ignored",
        "test_C03_extended",
        [
            ("len(data), len(data))", "header.stored_bytes + 4096, len(data))"),
            (
                "            chunkfile.check_payload",
                "            payload = payload[: header.stored_bytes]\n            chunkfile.check_payload",
            ),
        ],
    ),
    (
        "namespaces share their chunks",
        "test_A02_another_namespace_never_hits",
        [("self.context.namespace\n", "bytes(32)\n")],
    ),
    (
        "another version counts as damage",
        "test_C25_foreign_version_is_a_miss_and_stays",
        [("        except chunkfile.Foreign:\n            return End(Outcome.MISS)\n", "")],
    ),
    (
        "replaces another version's object",
        "test_C25_a_save_spares_a_foreign_version",
        [(' and old[8:10] == b"\\1\\0"', "")],
    ),
    (
        "damage is a silent miss",
        "test_C03_truncated",
        [("return End(Outcome.CORRUPT, reason=why.reason)", "return End(Outcome.MISS)")],
    ),
    (
        "damaged objects stay",
        "test_C03_damaged_object_can_be_saved_again",
        [
            (
                "            self.objects.pop(name)\n            return End(Outcome.CORRUPT",
                "            return End(Outcome.CORRUPT",
            )
        ],
    ),
    (
        "damage is removed after the completion",
        "test_C03_removal_ends_with_the_completion",
        [
            (
                "            self.objects.pop(name)\n",
                "            threading.Timer(0.001, self.objects.pop, (name, None)).start()\n",
            )
        ],
    ),
    (
        "one damaged chunk spoils its batch",
        "test_A13_damage_does_not_spread",
        [
            (
                "            outcomes, *loaded",
                "            bad = [e for e in ends if e.outcome is Outcome.CORRUPT]\n"
                "            ends = [bad[0]] * len(ends) if bad else ends\n            outcomes, *loaded",
            )
        ],
    ),
    # time
    (
        "completes twice",
        "test_one_completion_each",
        [(_DONE, "self.done.append(Completion(batch.id, outcomes, *loaded)); " + _DONE)],
    ),
    (
        "an empty batch never ends",
        "test_empty_batch",
        [
            (
                _ENDS,
                "            if not batch.keys:\n                continue\n" + _ENDS,
            )
        ],
    ),
    (
        "a late batch never ends",
        "test_deadline_in_the_past",
        [
            (
                _ENDS,
                "            if time.monotonic() > batch.deadline:\n                continue\n" + _ENDS,
            )
        ],
    ),
    (
        "a cancelled batch never ends",
        "test_cancel_ends_the_batch",
        [
            (
                _ENDS,
                "            if batch.id in self.cancelled:\n                continue\n" + _ENDS,
            )
        ],
    ),
    (
        "cancel raises for a batch that has ended",
        "test_B13_cancel_of_an_unknown_batch",
        [("self.cancelled.add(batch_id)", "self.cancelled.add({0: 1}[batch_id])")],
    ),
    ("wake is never called", "test_wake_is_called", [("            self.wake()\n", "")]),
    (
        "submit does the work",
        "test_B18_submit_returns_at_once",
        [("        self.queue.put(batch)", "        self.queue.put(batch)\n        time.sleep(0.01)")],
    ),
    (
        "poll waits for news",
        "test_poll_never_blocks",
        [("    def poll(self):\n", "    def poll(self):\n        time.sleep(0.01)\n")],
    ),
    (
        "writes a slot after its batch has ended",
        "test_B11_no_write_after_the_completion",
        [
            (
                _LATE,
                "            if batch.op is Op.LOAD:\n"
                "                threading.Timer(0.01, self.region.slot(batch.slots[at]).__setitem__, (0, 7)).start()\n"
                + _LATE,
            )
        ],
    ),
    (
        "a full queue raises",
        "test_B18_flood",
        [
            (
                "        self.queue.put(batch)",
                "        if self.queue.qsize() > 16:\n            raise BlockingIOError\n        self.queue.put(batch)",
            )
        ],
    ),
    # claims
    (
        "shares without saying so",
        "test_sharing_is_as_claimed",
        [("persistent=True, shared=True", "persistent=False, shared=False")],
    ),
    (
        "claims to share and does not",
        "test_sharing_is_as_claimed",
        [("self.config.objects, self", "dict(self.config.objects), self")],
    ),
    (
        "claims to persist and does not",
        "test_persistence_is_as_claimed",
        [("self.config.objects, self", "{}, self"), ("persistent=True, shared=True", "persistent=True")],
    ),
    ("removes without saying so", "test_unclaimed_remove_raises", [("removes=True", "removes=False")]),
    ("claims to remove and does not", "test_remove_forgets", [("            self.objects.pop(name, None)\n", "")]),
    (
        "a second removal fails",
        "test_remove_twice",
        [
            (
                "            self.objects.pop(name, None)\n            return End(Outcome.DONE)",
                "            return End(Outcome.DONE if self.objects.pop(name, None) else Outcome.FAILED)",
            )
        ],
    ),
    (
        "a removal crosses namespaces",
        "test_remove_stays_in_its_namespace",
        [
            (
                "            self.objects.pop(name, None)\n",
                "            for one in [n for n in self.objects if n[1] == name[1]]:\n"
                "                del self.objects[one]\n",
            )
        ],
    ),
    ("scan crosses namespaces", "test_scan_lists_exactly", [(" if space == self.space", "")]),
    ("scans without saying so", "test_unclaimed_scan_raises", [("scans=True", "scans=False")]),
    ("used_bytes is a guess", "test_used_bytes", [("sum(len(data) for data in self.objects.values())", "4096")]),
    ("a closed store takes batches", "test_a_closed_store_raises", [("if self.closed or (moves", "if (moves")]),
    (
        "unequal tuples are taken",
        "test_unequal_tuples_raise",
        [("if self.closed or (moves", "if self.closed or (False")],
    ),
    ("reasons name keys", "test_room_is_respected", [('reason="room"', "reason=name[1].hex()[:40]")]),
    (
        "close leaves its thread",
        "test_B19_close_leaves_nothing",
        [("            self.queue.put(None)\n            self.thread.join()", "            pass")],
    ),
    (
        "close of an unattached store raises",
        "test_close_without_attach",
        [("        if self.thread is not None:\n            self", "        if True:\n            self")],
    ),
]
