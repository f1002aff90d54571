"""Faults of transports: (what, the law that is meant for it, [(text of the reference transport, text instead)])."""

Fault = tuple[str, str, list[tuple[str, str]]]

_GIVE_BACK = "                    self.source.give_back(ticket)"
_PULL = "        self.start(self.pull, batch, self.calls[batch.id])"
_FILL = "        fill(sock, self.region.slot(batch.slots[at], length))\n"
_DONE = "self.done.append(Completion("

TRANSPORT_FAULTS: list[Fault] = [
    (
        "gives back before it has read",
        "test_leases_last_as_long_as_the_transfer",
        [
            (
                "                helds = found.get()\n",
                "                helds = found.get()\n                self.source.give_back(ticket)\n",
            ),
            (_GIVE_BACK, "                    pass"),
        ],
    ),
    ("never gives back", "test_leases_come_back_once", [(_GIVE_BACK, "                    pass")]),
    ("gives back twice", "test_leases_come_back_once", [(_GIVE_BACK, f"{_GIVE_BACK}\n{_GIVE_BACK}")]),
    (
        "keeps the leases of an abandoned pull",
        "test_the_puller_closes",
        [
            (
                "                    if self.closed or gone(sock):\n                        return None\n",
                "                    if self.closed or gone(sock):\n"
                "                        ticket = None\n"
                "                        return None\n",
            )
        ],
    ),
    (
        "takes any namespace",
        "test_A02_another_namespace_is_refused",
        [
            (
                '(ask["space"], ask["incarnation"]) != (self.context.namespace.hex(), self.context.incarnation)',
                'ask["incarnation"] != self.context.incarnation',
            )
        ],
    ),
    (
        "takes any incarnation",
        "test_B17_wrong_incarnation_fails",
        [
            (
                '(ask["space"], ask["incarnation"]) != (self.context.namespace.hex(), self.context.incarnation)',
                'ask["space"] != self.context.namespace.hex()',
            )
        ],
    ),
    (
        "does not wait for what is being filled",
        "test_filling_keys_are_waited_for",
        [('time.monotonic() + ask["seconds"]', "time.monotonic()")],
    ),
    ("a missing chunk is DONE", "test_A13_missing_keys_are_misses", [("else (Outcome.MISS,", "else (Outcome.DONE,")]),
    ("a missing chunk fails", "test_all_keys_missing", [("else (Outcome.MISS,", "else (Outcome.FAILED,")]),
    (
        "overruns the room",
        "test_room_is_respected",
        [
            ("if length > batch.lengths[at]:", "if False:"),
            ('return Outcome.DONE, length, ""', 'return Outcome.DONE, min(length, batch.lengths[at]), ""'),
        ],
    ),
    (
        "loads into the slot next door",
        "test_other_slots_are_untouched",
        [("self.region.slot(batch.slots[at], length))", "self.region.slot(batch.slots[0] + at, length))")],
    ),
    (
        "flips a byte on the way",
        "test_pull",
        [
            (
                _FILL,
                _FILL + "        self.region.slot(batch.slots[at])[0] ^= 1\n",
            )
        ],
    ),
    (
        "writes beyond the length",
        "test_beyond_the_length_nothing_is_written",
        [
            (
                _FILL,
                _FILL + "        self.region.slot(batch.slots[at])[length:] = bytes(self.region.slot_bytes - length)\n",
            )
        ],
    ),
    (
        "layouts are lost",
        "test_layouts_and_generated_travel",
        [('"" if layout == self.context.layout.text else layout, generated', '"", generated')],
    ),
    (
        "the peer's own layout becomes ours",
        "test_the_peers_own_layout_in_words",
        [("held.layout or self.context.layout.text,", "held.layout,")],
    ),
    (
        "generated counts are lost",
        "test_layouts_and_generated_travel",
        [("layout.text else layout, generated", "layout.text else layout, 0")],
    ),
    ("fulfil is not sent", "test_fulfil_reaches_the_source", [("        self.start(self.tell, peer)", "        pass")]),
    (
        "an unknown peer is waited for",
        "test_unknown_peer_fails",
        [("except (OSError, ValueError, KeyError) as error", "except (ValueError, KeyError) as error")],
    ),
    (
        "an impossible address raises",
        "test_impossible_address_fails",
        [
            (
                "        self.calls[batch.id] =",
                "        int(batch.peer.address.rpartition(':')[2])\n        self.calls[batch.id] =",
            )
        ],
    ),
    (
        "deadlines are for others",
        "test_a_silent_peer_costs_the_deadline",
        [("settimeout(max(0.001, seconds))", "settimeout(None)")],
    ),
    (
        "forget changes nothing",
        "test_forget_ends_loads",
        [("                self.end(call, Outcome.FAILED)", "                pass")],
    ),
    (
        "cancel changes nothing",
        "test_B05_cancel_ends_the_batch",
        [("        self.end(self.calls.get(batch_id, {}), Outcome.LATE)", "        pass")],
    ),
    (
        "writes a slot after its batch has ended",
        "test_B11_no_write_after_the_completion",
        [
            (
                "            ends += [(end",
                "            for slot in batch.slots:\n"
                "                threading.Timer(0.02, self.region.slot(slot).__setitem__, (0, 7)).start()\n"
                "            ends += [(end",
            )
        ],
    ),
    (
        "submit does the work",
        "test_B18_calls_return_at_once",
        [(_PULL, "        self.pull(batch, self.calls[batch.id])")],
    ),
    (
        "completes twice",
        "test_one_completion_each",
        [(_DONE, "self.done.append(Completion(batch.id, outcomes, lengths)); " + _DONE)],
    ),
    ("wake is never called", "test_wake_is_called", [("        self.wake()\n", "")]),
    (
        "one pull at a time",
        "test_a_slow_batch_does_not_stop_others",
        [
            (
                "    def pull(self, batch, call):\n",
                "    def pull(self, batch, call):\n"
                "        with self.__dict__.setdefault('lock', threading.Lock()):\n"
                "            self.pull_one(batch, call)\n\n"
                "    def pull_one(self, batch, call):\n",
            )
        ],
    ),
    (
        "a server that ends leaves its pulls waiting",
        "test_the_server_closes",
        [
            (
                "                    if self.closed or gone(sock):\n                        return None\n",
                "                    if gone(sock):\n                        return None\n",
            ),
            ("                thread.join(2.0)", "                pass"),
        ],
    ),
    (
        "rubbish ends the listener",
        "test_rubbish_on_the_port",
        [
            ("self.start(self.answer, self.server.accept()[0])", "self.answer(self.server.accept()[0])"),
            (
                "            except (OSError, ValueError, RuntimeError, TypeError, KeyError):",
                "            except ZeroDivisionError:",
            ),
        ],
    ),
    (
        "listens on every interface",
        "test_listens_on_loopback_only",
        [
            ("(self.config.host, 0)", '("0.0.0.0", 0)'),
            ('"{}:{}".format(*self.server.getsockname())', 'f"127.0.0.1:{self.server.getsockname()[1]}"'),
        ],
    ),
    ("names a wildcard address", "test_address_form", [("(self.config.host, 0)", '("0.0.0.0", 0)')]),
    ("takes a SAVE", "test_a_transport_only_loads", [("batch.op is not Op.LOAD or ", "")]),
    (
        "claims to keep chunks",
        "test_capabilities_are_fixed_and_modest",
        [("Capabilities()", "Capabilities(persistent=True)")],
    ),
    ("unequal tuples are taken", "test_unequal_tuples_raise", [(" or len(lengths) > 1", "")]),
    (
        "a closed transport takes batches",
        "test_a_closed_transport_raises",
        [("if self.closed or batch.op", "if batch.op")],
    ),
    (
        "close leaves the port open",
        "test_a_closed_transport_does_not_listen",
        [
            (
                "            self.server.close()",
                "            self.__class__.kept = [*getattr(self, 'kept', ()), self.server]",
            )
        ],
    ),
    (
        "close leaves its threads",
        "test_B19_close_leaves_nothing",
        [
            ("        while not self.closed:\n", "        while True:\n"),
            ("                thread.join(2.0)", "                pass"),
            ("            self.server.close()", "            pass"),
        ],
    ),
]
