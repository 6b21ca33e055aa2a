"""Python worker of Cofferdam: keeps an interpreter and evaluates cells of code.

The protocol is docs/reference/worker-protocol.md. The process is started with a line that reads this file from an inherited
descriptor and runs it in a namespace of its own; user code has the module `__main__`. Python 3.8 or later, standard library
only. Modules that are slow to load (asyncio, traceback, codeop) are imported on first use.

    idle --EXECUTE--> compile -> run user code -> RESULT or ERROR -> END --> idle

SIGINT raises KeyboardInterrupt in user code and in functions marked `interruptible`. Everywhere else in this file the handler
only sets a flag, so that an interrupt never leaves the worker's own state half changed.
"""

import _signal
import _socket
import _thread
import builtins
import fcntl
import io
import mmap
import os
import select
import struct
import sys
import time
import zlib
from _collections import deque
from errno import EBADF, ECONNRESET, ENOTSOCK, EPIPE

FILE = (lambda: 0).__code__.co_filename

HELLO, EXECUTE, COMPLETENESS = 0x01, 0x02, 0x03
READY, STDOUT, STDERR, DISPLAY, RESULT, ERROR, END, COMPLETE = range(0x10, 0x18)
CONTINUES = 1
NEVER = 1 << 64

FRAME = struct.Struct("<IBBHII")
CHECKED = struct.Struct("<IBBHI")  # the part of a frame's header that its checksum covers
CHECKSUM = struct.Struct("<I")
FRAME_BYTES = 16
MAX_PAYLOAD_BYTES = 262144
# A frame of this size fits a core's second-level cache together with its source: the checksum and the copy read it from there.
PIECE_BYTES = 131072
# Text is sent at a newline or when this much is pending.
PENDING_CHARACTERS = 8192
# A writer that waits for space looks at this interval whether it was interrupted.
SLICE_MS = 20
# Bound on one value of a MIME bundle. Longer text is cut, anything else is left out.
MAX_VALUE_CHARACTERS = 8 << 20
# Bound on the cells of a table and the points of a chart that are sent as data beside their rendering.
MAX_TABLE_CELLS = 100000
MAX_ERROR_CHARACTERS = 65536
MAX_TRACEBACK_CHARACTERS = 131072
MAX_FRAMES_SHOWN = 200
OMISSION = '  File "...", line 0, in '  # how the library formats the entry that stands for omitted frames
# Sources that tracebacks and `inspect` can show.
MAX_CELLS = 256
MAX_CELL_CHARACTERS = 16 << 20
# Time that the last output has at the end of the process, where no reader may be left.
SHUTDOWN_OUTPUT_S = 0.5
# Time that a cancelled coroutine has for its `finally` blocks; the supervisor waits 100 ms for the answer.
CANCEL_S = 0.05

PARSE_ONLY, TOP_LEVEL_AWAIT, IS_COROUTINE = 0x400, 0x2000, 0x80

# x86 keeps the order of stores. Elsewhere a lock that is released and taken orders them.
STRONGLY_ORDERED = os.uname().machine in ("x86_64", "i686")
NO_WAIT = _socket.MSG_DONTWAIT | _socket.MSG_NOSIGNAL

order_lock = _thread.allocate_lock()
order_lock.acquire()


def order_memory():
    order_lock.release()
    order_lock.acquire()


class Interrupts:
    """State of SIGINT, which only the main thread changes."""

    def __init__(self):
        self.busy = False  # a request is under way and its END is not yet written
        self.pending = False  # SIGINT arrived in code that must not be left by an exception
        self.raised = False  # KeyboardInterrupt was raised during this request
        self.task = None  # the task of a cell with a top-level await
        self.loop = None
        self.cancelled = False
        self.main_thread = _thread.get_ident()
        self.has_request = None  # returns true if bytes are in the input ring
        self.forked = False

    def install(self):
        """Sets the handler again: user code may have changed it."""
        if _signal.getsignal(_signal.SIGINT) is not on_sigint:
            _signal.signal(_signal.SIGINT, on_sigint)
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, (_signal.SIGINT,))

    def begin(self):
        self.busy, self.raised, self.cancelled = True, False, False

    def check(self):
        """Raises KeyboardInterrupt if one was put off. Called where the worker's code returns to user code."""
        if self.pending and _thread.get_ident() == self.main_thread:
            self.pending, self.raised = False, True
            raise KeyboardInterrupt


INTERRUPTS = Interrupts()
INTERRUPTIBLE = set()


def interruptible(function):
    """Marks a function that runs user code and holds no state of the worker: SIGINT may raise in it."""
    INTERRUPTIBLE.add(function.__code__)
    return function


def on_sigint(_number, frame):
    state = INTERRUPTS
    if state.forked:
        raise KeyboardInterrupt
    owner = frame
    while owner is not None and owner.f_code.co_filename != FILE:
        owner = owner.f_back
    if owner is None or owner.f_code not in INTERRUPTIBLE:
        # A signal that belongs to no request is ignored; the supervisor writes a request before it interrupts it.
        state.pending = state.busy or (state.has_request is not None and state.has_request())
        return
    state.pending, state.raised = False, True
    if state.task is not None and not state.cancelled and waits_in_event_loop(frame, owner):
        # An exception inside of the event loop could lose a callback of another task.
        state.cancelled = True
        state.task.cancel()
        state.loop.call_soon_threadsafe(do_nothing)
        return
    end_waits_for_children(frame, owner)
    raise KeyboardInterrupt


def do_nothing():
    pass


def waits_in_event_loop(frame, owner):
    while frame is not owner:
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in ("asyncio", "selectors"):
            return False
        frame = frame.f_back
    return True


def end_waits_for_children(frame, owner):
    """Lets `subprocess` give up at once. It waits 250 ms for a child to end by a SIGINT from the terminal; here is none."""
    while frame is not owner:
        if frame.f_globals.get("__name__") == "subprocess":
            popen = frame.f_locals.get("self")
            if getattr(popen, "_sigint_wait_secs", 0):
                popen._sigint_wait_secs = 0
        frame = frame.f_back


class Ring:
    """One ring of the shared memory. Positions live in the memory alone: one store publishes a change, or it did not happen."""

    def __init__(self, memory, words, offset, capacity):
        self.memory, self.words = memory, words
        self.head_at, self.tail_at, self.frames_at = ((offset + field) // 8 for field in (16, 24, 32))
        self.data_at, self.capacity = offset + 64, capacity

    def head(self):
        return self.words[self.head_at]

    def queued(self):
        return self.words[self.head_at] - self.words[self.tail_at]

    def free(self):
        return self.capacity - self.queued()

    def copy_out(self, position, size):
        at = position & (self.capacity - 1)
        start, first = self.data_at + at, min(size, self.capacity - at)
        piece = self.memory[start : start + first]
        return piece if first == size else piece + self.memory[self.data_at : self.data_at + size - first]

    def copy_in(self, position, data):
        at, size = position & (self.capacity - 1), len(data)
        start, first = self.data_at + at, min(size, self.capacity - at)
        if first == size:
            self.memory[start : start + size] = data
        elif size:
            data = memoryview(data)
            self.memory[start : start + first] = data[:first]
            self.memory[self.data_at : self.data_at + size - first] = data[first:]

    def write(self, header, payload):
        """Writes a whole frame; returns false if it does not fit."""
        words, size = self.words, len(payload) + FRAME_BYTES
        head = words[self.head_at]
        if head - words[self.tail_at] + size > self.capacity:
            return False
        if size <= 4096:
            self.copy_in(head, header + payload)
        else:
            self.copy_in(head, header)
            self.copy_in(head + FRAME_BYTES, payload)
        if not STRONGLY_ORDERED:
            order_memory()
        words[self.frames_at] += 1
        words[self.head_at] = head + size
        return True

    def peek(self):
        """Returns the frame at the reader's position, if all of it is there: (type, flags, request, payload, its end)."""
        tail, queued = self.words[self.tail_at], self.queued()
        if queued < FRAME_BYTES:
            return None
        if not STRONGLY_ORDERED:
            order_memory()
        header = self.copy_out(tail, FRAME_BYTES)
        length, kind, flags, _, request, checksum = FRAME.unpack(header)
        if length > MAX_PAYLOAD_BYTES or queued > self.capacity:
            os._exit(1)
        if queued < FRAME_BYTES + length:
            return None
        payload = self.copy_out(tail + FRAME_BYTES, length)
        if zlib.crc32(payload, zlib.crc32(header[:12])) != checksum:
            os._exit(1)
        return kind, flags, request, payload, tail + FRAME_BYTES + length

    def advance(self, position):
        """Frees the space up to a position. Returns true if a writer may wait for it."""
        if not STRONGLY_ORDERED:
            order_memory()
        before, half = self.queued(), self.capacity // 2
        self.words[self.tail_at] = position
        return before >= half > self.queued()


class Channel:
    """Frames to and from the supervisor, from every thread.

    A writer waits for space without the lock, so that nobody waits for a waiting writer. The lock is reentrant: a signal
    handler or a finalizer of user code may print while this thread is writing; such a frame is sent after the current one.
    """

    def __init__(self, memory_fd, bell_fd):
        size = os.fstat(memory_fd).st_size
        keywords = {"trackfd": False} if sys.version_info >= (3, 13) else {}
        memory = mmap.mmap(memory_fd, size, **keywords)
        words, half = memoryview(memory).cast("Q"), size // 2
        self.input = Ring(memory, words, 0, half - 64)
        self.output = Ring(memory, words, half, half - 64)
        self.piece = min(PIECE_BYTES, self.output.capacity // 2 - FRAME_BYTES)
        self.bell = _socket.socket(fileno=bell_fd)
        self.bell_fd = bell_fd
        self.lock = _thread.RLock()
        self.writing = False
        self.deferred = deque()
        self.request = 0
        self.end_position = 0  # the position in the output ring behind END of the latest request
        self.gone = False  # the supervisor is gone; output is dropped
        self.deadline = None
        self.is_unnotified = False  # frames were written and the doorbell was not rung
        self.pipes = None
        self.arrived = None
        self.pieces = {}  # payloads of a request that comes in several frames, by their position

    @property
    def idle(self):
        """True if no request is under way. Then the main thread must get every byte of the doorbell."""
        return self.gone or self.output.head() >= self.end_position

    def receive(self):
        """Waits for a request and returns it, again and again until `begin`. Returns None if the supervisor is gone.

        A signal handler of user code can raise between any two lines, so each step can be repeated.
        """
        while self.arrived is None:
            frame = self.input.peek()
            if frame is None:
                if not self.wait_for_bell():
                    return None
                continue
            kind, flags, request, payload, position = frame
            self.pieces[position] = payload
            if flags & CONTINUES:
                self.advance(position)
            else:
                payload = payload if len(self.pieces) == 1 else b"".join(self.pieces.values())
                self.arrived = kind, request, payload, position
        return self.arrived[:3]

    def begin(self, is_execution):
        """Takes the request off the ring."""
        with self.lock:
            self.request = self.arrived[1]
            self.end_position = NEVER if is_execution else 0
        self.advance(self.arrived[3])
        self.pieces.clear()
        self.arrived = None

    def advance(self, position):
        if self.input.advance(position):
            self.notify()

    def wait_for_bell(self):
        if self.is_unnotified:
            self.notify()
        try:
            return self.bell.recv(4096)
        except ConnectionResetError:
            return b""  # the supervisor left with wake-ups unread

    def notify(self):
        try:
            self.bell.send(b"\0", NO_WAIT)
        except BlockingIOError:
            pass  # a socket that is full holds a wake-up already
        except OSError as error:
            self.lose_bell(error)
        self.is_unnotified = False

    def lose_bell(self, error):
        """Ends the worker if user code closed the doorbell, and drops output if the supervisor did."""
        if error.errno in (EBADF, ENOTSOCK):
            os._exit(1)
        if error.errno not in (EPIPE, ECONNRESET):
            raise error  # a signal handler of user code raised it
        self.gone = True

    def header(self, kind, flags, payload):
        head = CHECKED.pack(len(payload), kind, flags, 0, self.request)
        return head + CHECKSUM.pack(zlib.crc32(payload, zlib.crc32(head)))

    def put(self, header, payload, ends_request=False):
        """Writes a frame if it fits."""
        with self.lock:
            if self.writing:
                self.deferred.append((header, bytes(payload)))
                return True
            self.writing = True
            try:
                self.is_unnotified = True
                if ends_request:
                    # Known before the frame is published: nothing can come between END and the end of the request.
                    self.end_position = self.output.head() + len(payload) + FRAME_BYTES
                return self.gone or self.output.write(header, payload)
            finally:
                self.writing = False
                if ends_request and not self.gone and not self.idle:
                    self.end_position = NEVER

    def send(self, kind, payload, flags=0, in_user_code=False, ends_request=False):
        """Writes a frame of at most `piece` bytes, and waits for space. Does not notify, unless it waits."""
        header = self.header(kind, flags, payload)
        while not self.put(header, payload, ends_request):
            self.wait_for_space(len(payload) + FRAME_BYTES, in_user_code)
        if self.deferred:
            self.send_deferred()

    def send_deferred(self):
        while self.deferred and not self.writing:
            header, payload = self.deferred.popleft()
            while not self.put(header, payload):
                self.wait_for_space(len(payload) + FRAME_BYTES, False)

    def send_pieces(self, kind, payload, in_user_code=False):
        """Writes a document; a long one is continued in further frames."""
        view, last = memoryview(payload), max(len(payload) - 1, 0) // self.piece
        # A document that has begun is finished: only before its first piece an interrupt may end it.
        for index in range(last + 1):
            piece = view[index * self.piece : (index + 1) * self.piece]
            self.send(kind, piece, CONTINUES if index < last else 0, in_user_code and index == 0)

    def send_output(self, kind, payload, in_user_code):
        """Writes bytes of standard output or error, after what the pipes already hold."""
        self.drain_pipes(self.pipes.burst)
        if len(payload) <= self.piece:
            self.send(kind, payload, 0, in_user_code)
            self.notify()
            return
        view = memoryview(payload)
        for start in range(0, len(view), self.piece):
            self.send(kind, view[start : start + self.piece], 0, in_user_code)
            self.notify()

    def recover(self):
        """Undoes what is left half done if a signal handler of user code raised where a `with` or `finally` block ends."""
        while self.lock._is_owned():
            self.lock.release()
        with self.lock:
            self.writing = self.pipes.is_polling = False
        self.send_deferred()

    def wait_for_space(self, size, in_user_code):
        self.notify()
        is_main = _thread.get_ident() == INTERRUPTS.main_thread
        pause = 0.001
        while self.output.free() < size and not self.gone:
            if self.deadline is not None and time.monotonic() > self.deadline:
                self.gone = True
            if is_main and in_user_code:
                INTERRUPTS.check()
            if self.idle and not is_main:
                # The supervisor reads nothing before the next request, and its doorbell belongs to the main thread.
                time.sleep(pause)
                pause = min(2 * pause, 0.25)
                continue
            bell = select.poll()
            bell.register(self.bell_fd, select.POLLIN)
            if bell.poll(SLICE_MS):
                with self.lock:
                    if is_main or not self.idle:
                        self.clear_bell()

    def clear_bell(self):
        try:
            self.gone = not self.bell.recv(4096, NO_WAIT)
        except BlockingIOError:
            pass
        except OSError as error:
            self.lose_bell(error)

    def forward(self, fd, kind):
        """Moves bytes from a pipe to the ring. Returns their number, or None if there is no space."""
        with self.lock:
            if self.writing:
                return 0
            # Read under the lock: bytes that another thread read first must not be overtaken.
            space = self.piece if self.gone else min(self.output.free() - FRAME_BYTES, self.piece)
            if space <= 0:
                return None
            try:
                data = os.read(fd, space)
            except BlockingIOError:
                return 0
            if data:
                self.put(self.header(kind, 0, data), data)
            return len(data)

    def drain_pipes(self, limit):
        """Sends what subprocesses and C code wrote to descriptors 1 and 2, up to a bound for each."""
        for fd in self.pipes.ready():
            left = limit
            while left > 0:
                moved = self.forward(fd, self.pipes.kinds[fd])
                if moved is None:
                    self.wait_for_space(self.piece + FRAME_BYTES, False)
                elif not moved:
                    break
                else:
                    left -= moved


class Pipes:
    """The pipes behind descriptors 1 and 2, and the thread that empties them while the main thread does not."""

    burst = 65536

    def __init__(self, channel):
        self.channel = channel
        self.kinds, self.writers, self.poll = {}, {}, select.poll()
        for fd, kind in ((1, STDOUT), (2, STDERR)):
            reader, writer = (move_high(end) for end in os.pipe())
            os.set_blocking(reader, False)
            os.dup2(writer, fd)
            self.kinds[reader], self.writers[fd] = kind, writer
            self.poll.register(reader, select.POLLIN)
        self.is_polling = False
        self.is_warning_silenced = False

    def restore(self):
        """Opens descriptors 0 to 2 again if user code closed them: new files would get their numbers."""
        for fd in (0, 1, 2):
            try:
                os.get_inheritable(fd)
            except OSError:
                if fd == 0:
                    os.set_inheritable(os.open("/dev/null", os.O_RDONLY), True)
                else:
                    os.dup2(self.writers[fd], fd)

    def ready(self):
        """Returns the descriptors that can be read."""
        with self.channel.lock:
            if self.is_polling:
                return ()  # a signal handler prints while this thread is in `poll`, which cannot be entered twice
            self.is_polling = True
            try:
                return [fd for fd, _ in self.poll.poll(0)]
            finally:
                self.is_polling = False

    def start_pump(self):
        try:
            _thread.start_new_thread(self.pump, ())
        except RuntimeError:
            pass  # no thread is allowed; output of subprocesses comes with the next frame

    def pump(self):
        poll = select.poll()
        for fd in self.kinds:
            poll.register(fd, select.POLLIN)
        try:
            while True:
                for fd, _ in poll.poll():
                    self.pump_pipe(fd)
        except OSError:
            pass  # user code closed a descriptor

    def pump_pipe(self, fd):
        channel = self.channel
        moved = channel.forward(fd, self.kinds[fd])
        if moved:
            channel.notify()
        elif moved is None:
            channel.wait_for_space(channel.piece + FRAME_BYTES, False)

    def before_fork(self):
        if sys.version_info >= (3, 12):
            self.silence_fork_warning()
        self.channel.lock.acquire()  # the child gets the streams in a state between two frames

    def silence_fork_warning(self):
        """Python warns of a fork beside other threads. Here is always one, which holds no lock but that of the channel."""
        if not self.is_warning_silenced:
            import warnings

            self.is_warning_silenced = True
            warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)

    def after_fork_in_parent(self):
        self.channel.lock.release()

    def after_fork_in_child(self):
        """Makes the child an ordinary process that writes to descriptors 1 and 2; the ring is its parent's."""
        INTERRUPTS.forked, INTERRUPTS.main_thread = True, _thread.get_ident()
        self.channel.lock.release()
        self.channel.bell.detach()
        for fd in (self.channel.bell_fd, *self.kinds, *self.writers.values()):
            try:
                os.close(fd)
            except OSError:
                pass
        for stream in STREAMS:
            stream.pending.clear()


def move_high(fd):
    """Moves a descriptor to a number that user code does not use, if the limit allows it."""
    lowest = min(4000, os.sysconf("SC_OPEN_MAX") - 32)
    try:
        moved = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, max(lowest, 16))
    except OSError:
        os.set_inheritable(fd, False)
        return fd
    os.close(fd)
    return moved


class Stream(io.TextIOBase):
    """Text stream whose content goes to the supervisor in frames."""

    encoding, errors, newlines, mode = "utf-8", "backslashreplace", None, "w"
    line_buffering, write_through = True, False

    def __init__(self, channel, kind, fd, name):
        self.channel, self.kind, self.fd, self.name = channel, kind, fd, name
        self.pending = deque()  # str, and bytes of the binary layer
        self.pending_size = 0
        self.buffer = StreamBuffer(self)

    def write(self, text):
        if type(text) is not str:
            if not isinstance(text, str):
                raise TypeError("write() argument must be str, not " + type(text).__name__)
            text = str.__str__(text)
        size = len(text)
        if size >= PENDING_CHARACTERS:
            self.send_pending(True)
            self.write_long(text)
            INTERRUPTS.check()
        elif size:
            self.pending.append(text)
            self.pending_size += size
            if self.pending_size >= PENDING_CHARACTERS or "\n" in text:
                self.send_pending(True)
                INTERRUPTS.check()
        return size

    def write_long(self, text):
        step = self.channel.piece
        for start in range(0, len(text), step):
            part = text if len(text) <= step else text[start : start + step]
            self.send(part.encode("utf-8", "backslashreplace"), True)

    def send_pending(self, in_user_code):
        if not self.pending:
            return
        parts = []
        with self.channel.lock:  # a line that several calls wrote stays whole
            try:
                while True:
                    parts.append(self.pending.popleft())
            except IndexError:
                self.pending_size = 0
        try:
            data = "".join(parts).encode("utf-8", "backslashreplace")
        except TypeError:
            data = b"".join([p if type(p) is bytes else p.encode("utf-8", "backslashreplace") for p in parts])
        if data:
            self.send(data, in_user_code)

    def send(self, data, in_user_code):
        if not INTERRUPTS.forked:
            self.channel.send_output(self.kind, data, in_user_code)
            return
        view = memoryview(data)
        while view:
            view = view[os.write(self.fd, view) :]

    def flush(self):
        self.send_pending(True)
        INTERRUPTS.check()

    def close(self):
        self.flush()  # the stream stays open: it is the only way to the supervisor

    def detach(self):
        raise io.UnsupportedOperation("detach")

    def reconfigure(self, **_options):
        self.flush()

    def fileno(self):
        return self.fd

    def isatty(self):
        return False

    def readable(self):
        return False

    def writable(self):
        return True

    def seekable(self):
        return False

    def __repr__(self):
        return "<Stream name=%r mode='w' encoding='utf-8'>" % self.name


class StreamBuffer(io.BufferedIOBase):
    """Binary layer of a stream."""

    mode = "wb"

    def __init__(self, stream):
        self.stream = stream
        self.name = stream.name
        self.raw = self

    def write(self, data):
        if isinstance(data, str):
            raise TypeError("a bytes-like object is required, not 'str'")
        stream, view = self.stream, memoryview(data)
        size = view.nbytes
        if size < PENDING_CHARACTERS:
            data = view.tobytes()
            stream.pending.append(data)
            stream.pending_size += size
            if stream.pending_size >= PENDING_CHARACTERS or b"\n" in data:
                self.flush()
            return size
        stream.send_pending(True)
        stream.send(view.cast("B") if view.c_contiguous else view.tobytes(), True)
        INTERRUPTS.check()
        return size

    def flush(self):
        self.stream.flush()

    def close(self):
        self.flush()

    def fileno(self):
        return self.stream.fd

    def isatty(self):
        return False

    def writable(self):
        return True


STREAMS = []


def flush_streams():
    """Sends what was printed so far, so that a frame of another type comes after it."""
    for stream, standard in ((sys.stdout, STREAMS[0]), (sys.stderr, STREAMS[1])):
        if stream is not standard and stream is not None:
            try:
                flush_foreign(stream)
            except Exception:
                pass  # user code put something else there
        standard.send_pending(False)


@interruptible
def flush_foreign(stream):
    stream.flush()


def warn(text):
    """Writes a short line to standard error."""
    STREAMS[1].write("cofferdam: %s\n" % text)


def no_input(prompt="", /):
    raise EOFError("input() is not available: there is no terminal; pass the data in the code or in a file")


def load_quote():
    try:
        from _json import encode_basestring as quote  # json itself imports re, which takes milliseconds
    except ImportError:
        from json.encoder import py_encode_basestring as quote
    return quote


quote = load_quote()
MISSING_VALUES = ("NaTType", "NAType")


@interruptible
def encode_json(value, depth=0):
    """Encodes a value as strict JSON. Values that JSON does not have become null or text; nesting is bounded."""
    kind = type(value)
    if kind is str:
        return quote(value)
    if value is None or value is True or value is False:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        return float.__repr__(value) if value - value == 0 else "null"
    if isinstance(value, int):
        number = int(value)
        return str(number) if -(1 << 63) <= number < 1 << 64 else quote(hex(number) if number >> 4096 else str(number))
    if depth >= 40:
        return quote("...")
    if isinstance(value, dict):
        items = (quote(str(key)) + ":" + encode_json(item, depth + 1) for key, item in value.items())
        return "{" + ",".join(items) + "}"
    if isinstance(value, (list, tuple, set, frozenset)):
        return "[" + ",".join([encode_json(item, depth + 1) for item in value]) + "]"
    if kind.__name__ in MISSING_VALUES:
        return "null"
    if kind.__name__ == "datetime64":
        return quote(str(value.astype("datetime64[s]")))
    for name in ("isoformat", "tolist"):
        if hasattr(kind, name):
            return encode_json(getattr(value, name)(), depth + 1)
    return quote(str(value))


def decode_json(text):
    try:
        from _json import make_scanner
    except ImportError:
        from json import loads

        return loads(text)

    class Context:
        strict, memo = False, {}
        object_hook = object_pairs_hook = array_hook = None
        parse_float, parse_int, parse_constant = float, int, float

    return make_scanner(Context)(text.strip(), 0)[0]


def to_bytes(document):
    return document.encode("utf-8", "replace")  # a lone surrogate is no JSON


BINARY = {"_repr_png_": "image/png", "_repr_jpeg_": "image/jpeg", "_repr_pdf_": "application/pdf"}
RICH = {
    "_repr_html_": "text/html",
    "_repr_markdown_": "text/markdown",
    "_repr_svg_": "image/svg+xml",
    "_repr_png_": "image/png",
    "_repr_jpeg_": "image/jpeg",
    "_repr_json_": "application/json",
    "_repr_latex_": "text/latex",
    "_repr_pdf_": "application/pdf",
    "_repr_javascript_": "application/javascript",
}
PLAIN = {int, float, complex, str, bytes, bytearray, bool, list, dict, tuple, set, frozenset, range}


class Bundle:
    """Representations of one value. An error in one is told on standard error and leaves the others alone."""

    def __init__(self, value):
        self.data, self.metadata = {}, {}
        self.add("text/plain", self.call("repr()", repr, value))
        if not self.data:
            self.add("text/plain", object.__repr__(value))
        if type(value) in PLAIN or isinstance(value, type):
            return
        self.add_methods(value)
        self.add_pandas(value)
        self.add_matplotlib(value)

    def call(self, name, function, *arguments, **keywords):
        try:
            return run_user_code(function, arguments, keywords)
        except BaseException as error:
            if INTERRUPTS.raised and isinstance(error, KeyboardInterrupt):
                raise
            warn("%s raised %s" % (name, one_line(error)))
            return None

    def add(self, mime, value):
        """Adds a representation as JSON text."""
        if value is None:
            return
        if isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], dict):
            value, self.metadata[mime] = value
        if isinstance(value, (bytes, bytearray, memoryview)):
            from binascii import b2a_base64

            value = b2a_base64(value, newline=False).decode()
        if mime == "text/plain" and len(value) > MAX_VALUE_CHARACTERS:
            value = "%s... [%d characters]" % (value[:MAX_VALUE_CHARACTERS], len(value))
        if isinstance(value, str) and not mime.endswith("json"):
            text = quote(str.__str__(value))
        else:
            text = self.call(mime, encode_json, value)
        if text is not None and len(text) > 2 * MAX_VALUE_CHARACTERS:
            warn("a value of type %s is left out: it has %d characters" % (mime, len(text)))
        elif text is not None:
            self.data[mime] = text

    def add_methods(self, value):
        kind = type(value)
        if callable(getattr(kind, "_repr_mimebundle_", None)):
            bundle = self.call("_repr_mimebundle_", value._repr_mimebundle_, include=None, exclude=None)
            if isinstance(bundle, tuple) and len(bundle) == 2:
                bundle, metadata = bundle
                if isinstance(metadata, dict):
                    self.metadata.update(metadata)
            if isinstance(bundle, dict):
                for mime, item in bundle.items():
                    self.add(str(mime), item)
        for name, mime in RICH.items():
            # Looked up on the type: proxies and mocks answer for every name.
            if callable(getattr(kind, name, None)) and (mime not in self.data or not self.data[mime]):
                method = self.call(name, getattr, value, name)
                item = self.call(name, method) if callable(method) else None
                if mime == "application/json" and isinstance(item, str):
                    item = self.call(name, decode_json, item)
                self.add(mime, item)

    def add_pandas(self, value):
        pandas = sys.modules.get("pandas")
        frame_type = getattr(pandas, "DataFrame", None)
        if isinstance(frame_type, type) and isinstance(value, frame_type) and value.size <= MAX_TABLE_CELLS:
            self.add("e2b/data", self.call("e2b/data", table_of, value))

    def add_matplotlib(self, value):
        figure_type = getattr(sys.modules.get("matplotlib.figure"), "Figure", None)
        if isinstance(figure_type, type) and isinstance(value, figure_type):
            if "image/png" not in self.data:
                self.add("image/png", self.call("savefig()", png_of, value))
            self.add("e2b/chart", self.call("e2b/chart", chart_of, value))

    def encode(self):
        data = ",".join([quote(mime) + ":" + text for mime, text in self.data.items()])
        metadata = self.call("metadata", encode_json, self.metadata) if self.metadata else None
        return to_bytes('{"data":{%s},"metadata":%s}' % (data, metadata or "{}"))


@interruptible
def run_user_code(function, arguments=(), keywords={}):
    INTERRUPTS.check()
    return function(*arguments, **keywords)


@interruptible
def table_of(frame):
    """Columns of a table as lists, under E2B's key for data."""
    table = {}
    for index, name in enumerate(frame.columns):
        column = frame.iloc[:, index]
        if getattr(column.dtype, "kind", "") == "M":
            column = column.dt.strftime("%Y-%m-%d %H:%M:%S").astype(object).where(column.notna(), None)
        table[str(name)] = column.tolist()
    return table


@interruptible
def png_of(figure):
    target = io.BytesIO()
    figure.savefig(target, format="png", bbox_inches="tight")
    return target.getvalue()


@interruptible
def chart_of(figure):
    """Returns the data behind a matplotlib figure in the structure that E2B's clients read."""
    axes = figure.get_axes()
    if not any(ax.has_data() for ax in axes):
        return None
    charts = [AxesChart(ax).describe() for ax in axes]
    if len(charts) == 1:
        return charts[0]
    title = figure._suptitle.get_text() if getattr(figure, "_suptitle", None) else ""
    return {"type": "superchart", "title": title, "elements": charts}


class AxesChart:
    """Data of one axes: its type follows from the kinds of artists in it."""

    def __init__(self, ax):
        self.ax = ax
        lines = [line for line in ax.get_lines() if not is_reference_line(line)]
        others = list(ax.patches) + list(ax.collections) + list(ax.images)
        names = {type(artist).__name__ for artist in others}
        if not others:
            self.kind = "line"
        elif names == {"PathPatch"}:
            self.kind = "box_and_whisker"
        elif lines:
            # Error bars and box edges are lines too, so a bar chart is one if each line belongs to a container.
            self.kind = "bar" if names <= {"Rectangle", "LineCollection"} and bars_of(ax) else "unknown"
        elif names <= {"PathCollection"}:
            self.kind = "scatter"
        elif names <= {"Wedge"}:
            self.kind = "pie"
        elif names <= {"Rectangle", "LineCollection"} and bars_of(ax):
            self.kind = "bar"
        else:
            self.kind = "unknown"
        self.lines = lines

    def describe(self):
        chart = {"type": self.kind, "title": self.ax.get_title() or None}
        if self.kind in ("line", "scatter", "bar", "box_and_whisker"):
            for axis, label in (("x", self.ax.get_xlabel()), ("y", self.ax.get_ylabel())):
                chart[axis + "_label"] = label or None
                chart[axis + "_unit"] = unit_of(label)
        if self.kind in ("line", "scatter"):
            self.describe_axis(chart, "x", self.ax.xaxis, self.ax.get_xscale())
            self.describe_axis(chart, "y", self.ax.yaxis, self.ax.get_yscale())
        describe = {"line": self.curves, "scatter": self.clouds, "bar": self.bars, "pie": self.slices}
        describe["box_and_whisker"] = self.boxes
        chart["elements"] = describe[self.kind](chart) if self.kind in describe else []
        return chart

    def describe_axis(self, chart, name, axis, scale):
        labels = [label.get_text() for label in axis.get_ticklabels()]
        ticks = [float(tick) for tick in axis.get_ticklocs()]
        converter = axis.get_converter() if hasattr(axis, "get_converter") else axis.converter
        if "Date" in type(converter).__name__:
            dates = sys.modules["matplotlib.dates"]
            ticks, scale = [dates.num2date(tick).isoformat() for tick in ticks], "datetime"
        elif scale == "linear" and labels:
            is_position = [tick == place and str(place) != label for place, (tick, label) in enumerate(zip(ticks, labels))]
            scale = "categorical" if all(is_position) else scale
        chart[name + "_ticks"], chart[name + "_tick_labels"], chart[name + "_scale"] = ticks, labels, scale

    def curves(self, _chart):
        elements = []
        for line in self.lines:
            label = str(line.get_label())
            if label.startswith("_child"):
                label = "Line " + label[6:]
            elements.append({"label": label, "points": points_of(line.get_xdata(), line.get_ydata())})
        return elements

    def clouds(self, _chart):
        offsets = [(cloud.get_label(), cloud.get_offsets()) for cloud in self.ax.collections]
        return [{"label": label, "points": points_of(*zip(*at)) if len(at) else []} for label, at in offsets]

    def bars(self, chart):
        elements, containers = [], bars_of(self.ax)
        for number, bars in enumerate(containers):
            group = str(bars.get_label())
            group = "Group %d" % number if group.startswith("_container") else group
            is_horizontal = getattr(bars, "orientation", None) == "horizontal"
            if is_horizontal and number == 0:
                swap_axes(chart)
            axis = self.ax.yaxis if is_horizontal else self.ax.xaxis
            texts = [label.get_text() for label in axis.get_ticklabels()]
            labels = {round(float(at), 9): text for at, text in zip(axis.get_ticklocs(), texts)}
            for index, bar in enumerate(bars):
                low = bar.get_y() if is_horizontal else bar.get_x()
                middle = low + (bar.get_height() if is_horizontal else bar.get_width()) / 2
                if len(texts) == len(bars):
                    label = texts[index]  # bars of a group stand beside their tick
                else:
                    label = labels.get(round(middle, 9), "%g" % middle)
                value = bar.get_width() if is_horizontal else bar.get_height()
                elements.append({"label": label, "group": group, "value": float(value)})
        return elements

    def slices(self, _chart):
        described = ((wedge, abs(float(wedge.theta2) - float(wedge.theta1))) for wedge in self.ax.patches)
        return [{"label": str(w.get_label()), "angle": round(angle, 6), "radius": float(w.r)} for w, angle in described]

    def boxes(self, chart):
        outlines = [patch.get_path().vertices for patch in self.ax.patches]
        spans = [[(float(v[:, i].min()), float(v[:, i].max())) for i in (0, 1)] for v in outlines]
        across = 0 if any(is_median(line, *span) for line in self.lines for span in spans) else 1
        if across:
            # The axis along which the boxes stand side by side is y: they lie.
            swap_axes(chart)
        labels = [label.get_text() for label in (self.ax.yaxis if across else self.ax.xaxis).get_ticklabels()]
        elements = []
        for index, span in enumerate(spans):
            label = labels[index] if index < len(labels) else str(index + 1)
            elements.append(box_of(label, span[across], span[1 - across], self.lines, across))
        return elements


def bars_of(ax):
    return [container for container in ax.containers if type(container).__name__ == "BarContainer"]


def swap_axes(chart):
    """Swaps the labels of the axes: E2B gives a horizontal chart as if it stood upright."""
    for field in ("_label", "_unit"):
        chart["x" + field], chart["y" + field] = chart["y" + field], chart["x" + field]


def is_median(line, xs, ys):
    """Returns true for a line across an upright box from side to side."""
    data_x, data_y = [float(x) for x in line.get_xdata()], [float(y) for y in line.get_ydata()]
    spans_box = len(data_x) == 2 and max(abs(min(data_x) - xs[0]), abs(max(data_x) - xs[1])) < 1e-9
    return spans_box and data_y[0] == data_y[1] and ys[0] <= data_y[0] <= ys[1]


def box_of(label, place, quartiles, lines, across):
    """Puts a box together from its outline and from the lines of its whiskers, median and outliers."""
    low, high = quartiles
    slack = 1e-9 * max(abs(low), abs(high), 1e-300)
    box = {"label": label, "min": low, "first_quartile": low, "median": low, "third_quartile": high, "max": high}
    outliers = []
    for line in lines:
        data = [[float(n) for n in axis] for axis in (line.get_xdata(), line.get_ydata())]
        along, values = data[across], data[1 - across]
        if not along or not all(place[0] <= at <= place[1] for at in along):
            continue
        if line.get_linestyle() == "None" and line.get_marker() not in (None, "None", ""):
            outliers.extend(values)
        elif len(values) == 2 and values[0] == values[1]:
            if low - slack <= values[0] <= high + slack:
                box["median"] = values[0]
        elif len(values) == 2 and abs(max(values) - low) <= slack:
            box["min"] = min(values)
        elif len(values) == 2 and abs(min(values) - high) <= slack:
            box["max"] = max(values)
    box["outliers"] = outliers
    return box


def is_reference_line(line):
    """Returns true for a line from one end of the axes to the other, which `axhline` and `axvline` draw."""
    return len(line.get_xdata()) == 2 and not line.get_transform().contains_branch(line.axes.transData) or (
        line.get_transform() in (line.axes.get_xaxis_transform("grid"), line.axes.get_yaxis_transform("grid"))
    )


def points_of(xs, ys):
    if len(xs) > MAX_TABLE_CELLS:
        raise ValueError("the chart has more than %d points" % MAX_TABLE_CELLS)
    return list(zip(xs, ys))


def unit_of(label):
    """Returns the unit in a label such as `time (s)` or `time [s]`."""
    for opening, closing in ((" (", ")"), ("[", "]")):
        _, found, rest = label.partition(opening)
        unit, ends, _ = rest.partition(closing)
        if found and ends and unit:
            return unit
    return None


def one_line(error):
    try:
        text = "%s: %s" % (type(error).__name__, error)
    except BaseException:
        text = type(error).__name__
    return text.replace("\n", " ")[:500]


def cut(text, limit):
    return text if len(text) <= limit else "%s\n... [%d characters]\n%s" % (text[: limit // 2], len(text), text[-limit // 2 :])


@interruptible
def describe_error(error):
    """Returns name, value and traceback of an exception, without the worker's own frames."""
    import traceback

    try:
        value = str(error)
    except Exception:
        value = "<str() of the exception failed>"
    if isinstance(error, SyntaxError) and error.text is None and error.lineno:
        # The later stages of the compiler look for the line in a file.
        error.text = sys.modules["linecache"].getline(str(error.filename), error.lineno) or None
    # Frames are gathered here: a limit of the library keeps one end of a deep stack, and both are of interest.
    report = traceback.TracebackException(type(error), error, None, limit=0)
    fill_stacks(report, error, traceback)
    text = "".join(report.format()).replace(OMISSION, "  ... ")
    return type(error).__name__[:1000], cut(value, MAX_ERROR_CHARACTERS), cut(text, MAX_TRACEBACK_CHARACTERS)


@interruptible
def fill_stacks(report, error, traceback):
    left, seen = [(report, error)], set()
    while left:
        report, error = left.pop()
        if report is None or error is None or id(report) in seen:
            continue
        seen.add(id(report))
        report.stack = stack_of(error, traceback)
        left.append((report.__cause__, error.__cause__))
        left.append((report.__context__, error.__context__))
        left.extend(zip(getattr(report, "exceptions", None) or (), getattr(error, "exceptions", ())))


@interruptible
def stack_of(error, traceback):
    entries = [entry for entry in traceback.walk_tb(error.__traceback__) if entry[0].f_code.co_filename != FILE]
    names = [frame.f_code.co_filename for frame, _ in entries]
    # What comes before the first cell is the event loop that runs it.
    first = next((index for index, name in enumerate(names) if name.startswith("<cell ")), None)
    if first is None and names and "asyncio" in names[0]:
        return traceback.StackSummary.from_list([])
    entries = entries[first or 0 :]
    if len(entries) > MAX_FRAMES_SHOWN:
        middle = len(entries) - MAX_FRAMES_SHOWN
        half = MAX_FRAMES_SHOWN // 2
        stack = traceback.StackSummary.extract(entries[:half])
        stack.append(traceback.FrameSummary("...", 0, "%d frames are left out" % middle, lookup_line=False, line=""))
        stack.extend(traceback.StackSummary.extract(entries[-half:]))
        return stack
    # walk_tb gives line numbers alone; columns come from the traceback itself (Python 3.11 and later).
    return with_positions(error, entries, traceback)


@interruptible
def with_positions(error, entries, traceback):
    if not hasattr(traceback, "_walk_tb_with_full_positions"):
        return traceback.StackSummary.extract(entries)
    kept = {id(frame) for frame, _ in entries}
    positions = traceback._walk_tb_with_full_positions(error.__traceback__)
    return traceback.StackSummary._extract_from_extended_frame_gen(
        item for item in positions if id(item[0]) in kept
    )


class Cells:
    """Sources of the latest cells, for tracebacks and `inspect`."""

    def __init__(self):
        self.sources = {}
        self.characters = 0

    def add(self, name, source):
        self.sources[name] = source
        self.characters += len(source)
        cache = getattr(sys.modules.get("linecache"), "cache", None)
        if isinstance(cache, dict):
            self.register(cache, name, source)
        while len(self.sources) > MAX_CELLS or (self.characters > MAX_CELL_CHARACTERS and len(self.sources) > 1):
            oldest = next(iter(self.sources))
            self.characters -= len(self.sources.pop(oldest))
            if isinstance(cache, dict):
                cache.pop(oldest, None)

    def register(self, cache, name, source):
        # An entry without a modification time is never checked against a file.
        cache[name] = (len(source), None, io.StringIO(source, None).readlines(), name)

    def register_all(self, linecache):
        for name, source in self.sources.items():
            self.register(linecache.cache, name, source)


class ImportHook:
    """Import hook that calls a function after one of a few modules was loaded."""

    def __init__(self, actions):
        self.actions = actions

    @interruptible
    def find_spec(self, name, path=None, target=None):
        action = self.actions.get(name)
        if action is None:
            return None
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target) if finder is not self else None
            if spec is not None:
                try:
                    spec.loader.exec_module = run_after(spec.loader.exec_module, action)
                except AttributeError:
                    pass  # a loader without attributes of its own
                return spec
        return None


def run_after(exec_module, action):
    @interruptible
    def exec_module_then_act(module):
        exec_module(module)
        action(module)

    return exec_module_then_act


class Compiler:
    """Compiles cells: statements, and the last expression on its own."""

    def __init__(self):
        self.flags = TOP_LEVEL_AWAIT

    def compile(self, source, name):
        """Returns code objects to run in order; the value of the last one is the result."""
        if len(source) > 8192:
            self.check_depth(source, name)
        tree = compile(source, name, "exec", PARSE_ONLY | self.flags, True)
        body, codes = tree.body, []
        last = body[-1] if body else None
        if type(last).__name__ == "Expr" and not (";" in source and ends_with_semicolon(source, last)):
            from _ast import Expression

            del body[-1]
            codes.append(compile(Expression(last.value), name, "eval", self.flags, True))
        if body:
            codes.insert(0, compile(tree, name, "exec", self.flags, True))
        if "__future__" in source:
            self.keep_features(codes)
        return codes

    def check_depth(self, source, name):
        """Compiles without a syntax tree in Python objects: a deep one overflows the C stack of older interpreters."""
        import warnings

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(source, name, "exec", self.flags, True)

    def keep_features(self, codes):
        """Keeps `from __future__ import ...` for the cells that follow."""
        import __future__

        for name in __future__.all_feature_names:
            flag = getattr(__future__, name).compiler_flag
            if any(code.co_flags & flag for code in codes):
                self.flags |= flag


def ends_with_semicolon(source, last):
    lines = source.encode("utf-8", "replace").replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    tail = lines[last.end_lineno - 1 : last.end_lineno]
    tail = [line[last.end_col_offset :] for line in tail] + lines[last.end_lineno :]
    return any(b";" in line.partition(b"#")[0] for line in tail)


def judge_completeness(source, flags):
    """Returns the fields of a COMPLETE document: is this a whole input, or do lines follow?"""
    import codeop
    import warnings

    if not source.strip():
        return {"status": "complete"}
    compiler = codeop.CommandCompiler()
    compiler.compiler.flags |= flags
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            is_whole = compiler(source, "<input>", "exec") is not None
            tree = compile(source, "<input>", "exec", PARSE_ONLY | flags, True) if is_whole else None
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
        return {"status": "invalid"}
    last_line = source.rstrip().rpartition("\n")[2]
    indent = last_line[: len(last_line) - len(last_line.lstrip())]
    if last_line.partition("#")[0].rstrip().endswith(":"):
        indent += "\t" if indent.endswith("\t") else "    "
    if is_whole:
        last = tree.body[-1] if tree.body else None
        is_block = hasattr(last, "body") and last.end_lineno > last.lineno
        ends_in_block = is_block and indent and not source.rstrip(" \t").endswith("\n")
        if not ends_in_block:
            return {"status": "complete"}
    return {"status": "incomplete", "indent": indent}


class Runner:
    """Runs the code of cells in the module `__main__`, with one event loop for all of them."""

    def __init__(self):
        self.module = type(sys)("__main__")
        self.module.__builtins__ = builtins
        self.namespace = self.module.__dict__
        self.loop = None

    def run(self, codes):
        if not any(code.co_flags & IS_COROUTINE for code in codes):
            return run_codes(codes, self.namespace)
        import asyncio

        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        INTERRUPTS.loop = self.loop
        INTERRUPTS.task = self.loop.create_task(run_codes_async(codes, self.namespace))
        try:
            return run_task(self.loop, INTERRUPTS.task)
        except asyncio.CancelledError:
            if INTERRUPTS.cancelled:
                raise KeyboardInterrupt from None
            raise
        finally:
            self.end_task(asyncio, INTERRUPTS.task)

    def end_task(self, asyncio, task):
        INTERRUPTS.task = None
        if INTERRUPTS.forked:
            return
        if not task.done():
            # The interrupt left the event loop itself: the coroutine still has its `finally` blocks to run.
            task.cancel()
            try:
                run_task(self.loop, asyncio.wait([task], timeout=CANCEL_S))
            except BaseException:
                pass
        if task.done() and not task.cancelled():
            task.exception()  # marks it as seen: it is reported as the error of the cell


@interruptible
def run_codes(codes, namespace):
    INTERRUPTS.check()
    value = None
    for code in codes:
        value = eval(code, namespace)
    return value


@interruptible
async def run_codes_async(codes, namespace):
    value = None
    for code in codes:
        value = eval(code, namespace)
        if code.co_flags & IS_COROUTINE:
            value = await value
    return value


@interruptible
def run_task(loop, task):
    INTERRUPTS.check()
    return loop.run_until_complete(task)


class Worker:
    """Answers requests until the supervisor ends it."""

    def __init__(self, channel):
        self.channel = channel
        self.cells, self.compiler, self.runner = Cells(), Compiler(), Runner()
        self.count = 0
        self.shows_figures = False

    def install(self):
        """Gives user code its module, its streams and its builtins."""
        channel = self.channel
        channel.pipes = Pipes(channel)
        STREAMS.append(Stream(channel, STDOUT, 1, "<stdout>"))
        STREAMS.append(Stream(channel, STDERR, 2, "<stderr>"))
        sys.stdout = sys.__stdout__ = STREAMS[0]
        sys.stderr = sys.__stderr__ = STREAMS[1]
        sys.modules["__main__"] = self.runner.module
        sys.argv = [""]
        if sys.path[:1] != [""]:
            sys.path.insert(0, "")
        builtins.display, builtins.input = self.display, no_input
        actions = {"linecache": self.cells.register_all, "matplotlib.pyplot": self.prepare_pyplot}
        sys.meta_path.insert(0, ImportHook(actions))
        os.register_at_fork(
            before=channel.pipes.before_fork,
            after_in_parent=channel.pipes.after_fork_in_parent,
            after_in_child=channel.pipes.after_fork_in_child,
        )
        channel.pipes.start_pump()

    def serve(self):
        """Answers one request after the other."""
        channel = self.channel
        while True:
            try:
                if not channel.idle:
                    # A signal handler of user code raised in the worker's code, before END was written.
                    if channel.arrived is not None:
                        channel.begin(True)
                    self.end("error")
                    continue
                frame = channel.receive()
                if frame is None:
                    self.shut_down()
                self.dispatch(*frame)
            except BaseException as error:
                leave_child_process(error)
                if isinstance(error, OSError) and error.errno in (EBADF, ENOTSOCK):
                    os._exit(1)  # user code closed the doorbell

    def dispatch(self, kind, request, payload):
        if kind == EXECUTE:
            INTERRUPTS.begin()
            self.count += 1
            self.channel.begin(True)
            self.execute(payload)
            return
        self.channel.begin(False)
        if kind == COMPLETENESS:
            self.judge(payload)
        elif kind == HELLO:
            self.greet(payload)

    def greet(self, payload):
        hello = decode_json(payload.decode("utf-8", "replace"))
        for name, value in (hello.get("env") or {}).items():
            os.environ[name] = value
        os.environ.setdefault("MPLBACKEND", "Agg")
        if "TZ" in (hello.get("env") or {}):
            time.tzset()
        failure = None
        try:
            cwd = hello.get("cwd")
            if cwd and os.getcwd() != cwd:
                os.chdir(cwd)
        except OSError as error:
            failure = error
        version = "%d.%d.%d" % sys.version_info[:3]
        document = '{"protocol":1,"language":"python","version":"%s","pid":%d}' % (version, os.getpid())
        self.answer(READY, document)
        if failure is not None:
            warn("cannot enter the working directory: %s" % failure)

    def answer(self, kind, document):
        self.channel.send(kind, to_bytes(document))
        self.channel.notify()

    def judge(self, payload):
        try:
            verdict = judge_completeness(payload.decode("utf-8"), self.compiler.flags)
        except ValueError:
            verdict = {"status": "invalid"}
        INTERRUPTS.pending = False
        self.answer(COMPLETE, encode_json(verdict))

    def execute(self, payload):
        error = self.run(payload)
        status = "ok" if error is None else self.report(error)
        error = None
        self.end(status)

    def run(self, payload):
        """Runs a cell and shows its result and figures. Returns the exception that ended it."""
        error = value = None
        try:
            value = self.runner.run(self.compile(payload))
        except BaseException as raised:
            error = raised
        leave_child_process(error)
        try:
            if value is not None:
                builtins._ = value
                bundle = Bundle(value).encode()
                self.flush()
                self.channel.send_pieces(RESULT, bundle)
            if "matplotlib.pyplot" in sys.modules:
                self.end_figures(value, INTERRUPTS.raised)
        except BaseException as raised:
            leave_child_process(raised)
            error = error or raised
        return error

    def compile(self, payload):
        try:
            source = payload.decode("utf-8")
        except UnicodeDecodeError as error:
            text = "the source is not UTF-8: byte 0x%02x at offset %d" % (payload[error.start], error.start)
            raise SyntaxError(text) from None
        source = source[1:] if source[:1] == "\ufeff" else source
        name = "<cell %d>" % self.count
        self.cells.add(name, source)
        return self.compiler.compile(source, name)

    def flush(self):
        flush_streams()
        self.channel.drain_pipes(16 * Pipes.burst)

    def report(self, error):
        """Sends an ERROR frame and returns the status of the request."""
        is_interrupt = INTERRUPTS.raised and isinstance(error, KeyboardInterrupt)
        try:
            sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
            sys.last_exc = error
            name, value, text = describe_error(error)
        except BaseException as failure:
            leave_child_process(failure)
            name, value = type(error).__name__, ""
            text = "%s\n" % one_line(error)
        document = '{"name":%s,"value":%s,"traceback":%s}' % (quote(name), quote(value), quote(text))
        self.flush()
        self.channel.send_pieces(ERROR, to_bytes(document))
        return "interrupted" if is_interrupt else "error"

    def end(self, status):
        self.channel.recover()
        INTERRUPTS.install()
        self.channel.pipes.restore()
        self.flush()
        document = b'{"status":"%s","execution_count":%d}' % (status.encode(), self.count)
        INTERRUPTS.pending = INTERRUPTS.busy = False
        self.channel.send(END, document, ends_request=True)
        self.channel.notify()

    def display(self, *values, raw=False, metadata=None, **_options):
        """Shows values in their richest form. With raw=True a value is a dict from MIME type to content."""
        for value in values:
            if INTERRUPTS.forked:
                print(value)
                continue
            bundle = Bundle(None if raw else value)
            if raw:
                bundle.data.clear()
                for mime, content in dict(value).items():
                    bundle.add(str(mime), content)
            bundle.metadata.update(metadata or {})
            document = bundle.encode()
            self.flush()
            self.channel.send_pieces(DISPLAY, document, True)
            self.channel.notify()
        INTERRUPTS.check()

    def prepare_pyplot(self, pyplot):
        """Makes `plt.show()` send the open figures; with the Agg backend it would do nothing."""
        show = pyplot.show

        def show_figures(*arguments, **keywords):
            if INTERRUPTS.forked or _thread.get_ident() != INTERRUPTS.main_thread:
                return show(*arguments, **keywords)
            return self.end_figures(None, False)

        pyplot.show = show_figures

    @interruptible
    def end_figures(self, shown, discard):
        """Shows and closes the figures that a cell left open, except one that was its result."""
        pyplot = sys.modules["matplotlib.pyplot"]
        if not hasattr(pyplot, "get_fignums"):
            return  # its import failed or was interrupted
        try:
            for number in () if discard else pyplot.get_fignums():
                figure = pyplot.figure(number)
                if figure is not shown and figure.get_axes():
                    self.display(figure)
        finally:
            pyplot.close("all")

    def shut_down(self):
        import atexit

        self.channel.end_position = NEVER
        INTERRUPTS.begin()
        self.channel.deadline = time.monotonic() + SHUTDOWN_OUTPUT_S
        try:
            run_user_code(atexit._run_exitfuncs)
            self.flush()
        except BaseException as error:
            leave_child_process(error)
        os._exit(0)


def leave_child_process(error):
    """Ends a process that user code forked and that came back from the cell: the requests are its parent's."""
    if not INTERRUPTS.forked:
        return
    status = 0
    try:
        if isinstance(error, SystemExit):
            status = error.code if isinstance(error.code, int) else int(error.code is not None)
            if error.code is not None and not isinstance(error.code, int):
                sys.stderr.write("%s\n" % error.code)
        elif error is not None:
            status = 1
            sys.stderr.write(describe_error(error)[2])
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status & 0xFF)


def main():
    _signal.signal(_signal.SIGINT, on_sigint)
    memory_fd, bell_fd, source_fd = (int(fd) for fd in os.environ.pop("COFFERDAM_WORKER").split(","))
    os.close(source_fd)
    channel = Channel(memory_fd, move_high(bell_fd))
    os.close(memory_fd)
    INTERRUPTS.has_request = channel.input.queued
    worker = Worker(channel)
    worker.install()
    repeat(lambda: repeat(worker.serve))


def repeat(function):
    """Calls a function again and again. A signal handler of user code can raise in an `except` clause too: hence two levels."""
    while True:
        try:
            function()
        except BaseException:
            pass


main()
