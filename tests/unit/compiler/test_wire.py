from tuner.compiler.wire import Unpacker, packed


def test_messages_survive_any_way_of_cutting_the_stream():
    messages = [
        ({"log": "naïve\n", "n": 1}, b""),
        ({}, bytes(range(256)) * 1000),
        ({"a": []}, b"x"),
    ]
    stream = b"".join(packed(*message) for message in messages)

    for size in (1, 7, 4096, len(stream)):
        unpacker = Unpacker()
        pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
        if size == 1:
            pieces = [*pieces[:50], stream[50:]]
        assert [m for piece in pieces for m in unpacker.feed(piece)] == messages
