// The JavaScript worker: evaluates cells of code in the guest's own Node and keeps their state. Frames and rings are those
// of docs/reference/worker-protocol.md. The file has no dependencies and runs on Node 18 and later, with the inspector.
//
// Cells run through V8's REPL mode (`Runtime.evaluate` of an inspector session in this thread, no port is opened): top-level
// `let`, `const` and `class` persist and can be declared again, and `await` works at the top level. What that mode refuses is
// rewritten first: static and dynamic `import`, `const` (which could only be declared again as `const`).
//
// Every run of a cell's synchronous part is inside a vm script with `breakOnSigint`, so that SIGINT can end a busy loop. V8 may
// then end any function of this file that user code called, between two statements. So the state of a ring changes by
// one store of its position, and is read again from the memory file after an interrupt. A busy loop after an `await` that
// waited for the event loop is outside of that script and cannot be interrupted; the supervisor then starts a new worker.
'use strict';

// What user code can replace is taken here: globals, and methods of prototypes that are used on hot paths.
const { JSON, Object, Reflect, Buffer, Atomics, String, Number, BigInt, Array, Error, SyntaxError, Math, RegExp, Set, process } = globalThis;
const { setTimeout, clearTimeout, setInterval, clearInterval, setImmediate } = globalThis;
const { stringify, parse } = JSON;
const { isArray } = Array;
const { apply } = Reflect;
const { min, max, floor } = Math;
const { defineProperty, getPrototypeOf, hasOwn, keys, getOwnPropertyDescriptor } = Object;
const uncurry = Function.prototype.bind.bind(Function.prototype.call);
const utf8Write = uncurry(Buffer.prototype.utf8Write);
const toText = uncurry(Buffer.prototype.toString);
const copyBytes = uncurry(Buffer.prototype.set);
const subarray = uncurry(Uint8Array.prototype.subarray);
const slice = uncurry(String.prototype.slice);
const charCodeAt = uncurry(String.prototype.charCodeAt);
const indexOf = uncurry(String.prototype.indexOf);
const replace = uncurry(String.prototype.replace);
const split = uncurry(String.prototype.split);
const trim = uncurry(String.prototype.trim);
const join = uncurry(Array.prototype.join);
const push = uncurry(Array.prototype.push);
const includes = uncurry(Array.prototype.includes);
const test = uncurry(RegExp.prototype.test);
const exec = uncurry(RegExp.prototype.exec);
const fs = require('fs');
const vm = require('vm');
const net = require('net');
const path = require('path');
const util = require('util');
const zlib = require('zlib');
const Module = require('module');
const childProcess = require('child_process');
const { pathToFileURL } = require('url');
const { Writable } = require('stream');
const { isUtf8 } = require('buffer');
const { Session } = require('inspector');
const { promiseHooks } = require('v8');
const { readSync, writeSync, closeSync } = fs;
const { inspect } = util;
const { isProxy, isNativeError } = util.types;
const runTicks = process._tickCallback;
const exitNow = process.reallyExit.bind(process);

const HELLO = 0x01, EXECUTE = 0x02, COMPLETENESS = 0x03;
const READY = 0x10, STDOUT = 0x11, STDERR = 0x12, DISPLAY = 0x13, RESULT = 0x14, ERROR = 0x15, END = 0x16, COMPLETE = 0x17;
const FRAME_HEADER = 16;
const MAX_PAYLOAD = 262144;
const CONTINUES = 1;
const RING_HEADER = 64;
const HEAD = 16, TAIL = 24, FRAMES = 32;
const WORKER_FILE = 'cofferdam-worker.js';

const descriptors = split(process.env.COFFERDAM_WORKER, ',');
const bellFd = Number(descriptors[1]);
const ringsFd = openRings(Number(descriptors[0]));
closeSync(Number(descriptors[2]));
delete process.env.COFFERDAM_WORKER;

/// Opens the rings again, which gives a descriptor that is close-on-exec. Without /proc the inherited one stays.
function openRings(inherited) {
  try {
    const fd = fs.openSync(`/proc/self/fd/${inherited}`, 'r+');
    closeSync(inherited);
    return fd;
  } catch {
    return inherited;
  }
}

// CRC-32 of frames. zlib's is faster from some hundred bytes on; older versions of Node have none.

const nativeCrc = zlib.crc32;
const crcTables = makeCrcTables(nativeCrc ? 1 : 8);

function makeCrcTables(count) {
  const tables = new Int32Array(256 * count);
  for (let n = 0; n < 256; n++) {
    let crc = n;
    for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0xedb88320 : crc >>> 1;
    tables[n] = crc;
  }
  for (let n = 256; n < 256 * count; n++) tables[n] = (tables[n - 256] >>> 8) ^ tables[tables[n - 256] & 255];
  return tables;
}

/// Returns the CRC-32 of a frame in a buffer: its first 12 bytes and its payload.
function crcOfFrame(bytes, length) {
  const crc = crcPart(bytes, 0, 12, -1);
  const end = FRAME_HEADER + length;
  if (nativeCrc && length > 200) return nativeCrc(subarray(bytes, FRAME_HEADER, end), ~crc >>> 0);
  return ~crcPart(bytes, FRAME_HEADER, end, crc) >>> 0;
}

function crcPart(bytes, at, end, crc) {
  const t = crcTables;
  if (t.length > 256) {
    for (; at + 8 <= end; at += 8) {
      crc ^= bytes[at] | (bytes[at + 1] << 8) | (bytes[at + 2] << 16) | (bytes[at + 3] << 24);
      crc = t[1792 + (crc & 255)] ^ t[1536 + ((crc >>> 8) & 255)] ^ t[1280 + ((crc >>> 16) & 255)] ^ t[1024 + (crc >>> 24)]
        ^ t[768 + bytes[at + 4]] ^ t[512 + bytes[at + 5]] ^ t[256 + bytes[at + 6]] ^ t[bytes[at + 7]];
    }
  }
  for (; at < end; at++) crc = (crc >>> 8) ^ t[(crc ^ bytes[at]) & 255];
  return crc;
}

const word = Buffer.alloc(16);
const words = new Uint32Array(word.buffer, word.byteOffset, 4);
const oneByte = Buffer.alloc(1);
const bellBytes = Buffer.alloc(4096);
const frame = newFrame();
const frameWords = new Uint32Array(frame.buffer, 0, 4);
const received = newFrame();
const receivedWords = new Uint32Array(received.buffer, 0, 4);
const capacity = readCapacity();
const outputRing = RING_HEADER + capacity;

let head = readPosition(outputRing + HEAD);
/// The supervisor's position in the output ring when it was last read.
let readerTail = readPosition(outputRing + TAIL);
let frames = readPosition(outputRing + FRAMES);
let tail = readPosition(TAIL);
let input = [];
let pieces = [];

function newFrame() {
  return Buffer.from(new ArrayBuffer(FRAME_HEADER + MAX_PAYLOAD));
}

function readCapacity() {
  readSync(ringsFd, word, 0, 16, 0);
  if (words[0] !== 0x31524643 || words[1] !== 1) exitNow(1);
  return words[2];
}

/// Reads a position until two reads in a row agree: the other side may be writing it.
function readPosition(offset) {
  for (let low = -1, high = -1; ;) {
    readSync(ringsFd, word, 0, 8, offset);
    if (words[0] === low && words[1] === high) return high * 0x100000000 + low;
    low = words[0];
    high = words[1];
  }
}

function writePosition(offset, position) {
  words[0] = position % 0x100000000;
  words[1] = position / 0x100000000;
  writeSync(ringsFd, word, 0, 8, offset);
}

/// Wakes the supervisor. A socket that is full holds a wake-up already, and one that is closed is seen by its reader.
function notify() {
  try {
    writeSync(bellFd, oneByte, 0, 1);
  } catch { }
}

/// Sends the payload that is in `frame`. The frame is in the ring with the one store of its position, or not at all.
function sendFrame(type, flags, length, wake) {
  frameWords[0] = length;
  frameWords[1] = type | (flags << 8);
  frameWords[2] = request;
  frameWords[3] = crcOfFrame(frame, length);
  const total = FRAME_HEADER + length;
  if (capacity - (head - readerTail) < total) waitForSpace(total);
  const at = head % capacity;
  const first = min(total, capacity - at);
  writeSync(ringsFd, frame, 0, first, outputRing + RING_HEADER + at);
  if (first < total) writeSync(ringsFd, frame, first, total - first, outputRing + RING_HEADER);
  writePosition(outputRing + HEAD, head + total);
  head += total;
  frames++;
  if (wake) notify();
}

const waitCell = new Int32Array(new SharedArrayBuffer(4));

/// Waits for the supervisor until a whole frame fits; the ring holds at least two. SIGINT ends the wait: while a cell's
/// script runs V8 wakes Atomics.wait and ends the script; otherwise the flag is looked at here.
function waitForSpace(total) {
  for (let pause = 0.1; ; pause = min(pause * 1.5, 8)) {
    readerTail = readPosition(outputRing + TAIL);
    if (capacity - (head - readerTail) >= total) return;
    checkSupervisor();
    if (cell && !cell.isEnding && !isInScript && takeInterrupt()) {
      interruptCell();
      setImmediate(endCell, cell);
      throw new Interrupted();
    }
    Atomics.wait(waitCell, 0, 0, pause);
  }
}

/// Ends the worker where the supervisor is gone. The event loop does not run during a wait, so the doorbell is read here.
function checkSupervisor() {
  let count = -1;
  try {
    count = readSync(bellFd, bellBytes, 0, bellBytes.length);
  } catch { }
  if (count === 0) exitNow(0);
  if (count > 0) setImmediate(onBell);
}

/// Sends text in as many frames as it needs. Pieces end between characters. Documents carry the flag that joins them again.
function sendText(type, text, wake = true) {
  const isOutput = type === STDOUT || type === STDERR;
  const step = floor(MAX_PAYLOAD / 3);
  for (let at = 0; ;) {
    let end = min(at + step, text.length);
    if (end < text.length && (charCodeAt(text, end - 1) & 0xfc00) === 0xd800) end--;
    const isWhole = at === 0 && end === text.length;
    const count = utf8Write(frame, isWhole ? text : slice(text, at, end), FRAME_HEADER, MAX_PAYLOAD);
    sendFrame(type, isOutput || end === text.length ? 0 : CONTINUES, count, wake);
    if (end === text.length) return;
    at = end;
  }
}

function sendBytes(type, bytes) {
  for (let at = 0; at < bytes.length; at += MAX_PAYLOAD) {
    const part = subarray(bytes, at, min(at + MAX_PAYLOAD, bytes.length));
    copyBytes(frame, part, FRAME_HEADER);
    sendFrame(type, 0, part.length, true);
  }
}

/// Reads the frames that are there. The tail moves by whole frames.
function readInput() {
  for (; ;) {
    const available = readPosition(HEAD) - tail;
    if (available < 0 || available > capacity) exitNow(1);
    if (available < FRAME_HEADER) return;
    let got = min(available, 8192);
    readRing(received, 0, got);
    const length = receivedWords[0];
    if (length > MAX_PAYLOAD) exitNow(1);
    const total = FRAME_HEADER + length;
    if (available < total) return;
    if (total > got) readRing(received, got, total);
    if (crcOfFrame(received, length) !== receivedWords[3]) exitNow(1);
    const type = received[4], continues = received[5] & CONTINUES, id = receivedWords[2];
    push(pieces, Buffer.from(subarray(received, FRAME_HEADER, total)));
    if (!continues) {
      push(input, { type, id, payload: pieces.length === 1 ? pieces[0] : Buffer.concat(pieces) });
      pieces = [];
    }
    tail += total;
    writePosition(TAIL, tail);
    if (available >= capacity / 2 && available - total < capacity / 2) notify();
  }
}

/// Copies a part of the next frame, which may go on at the beginning of the ring.
function readRing(target, from, to) {
  const at = (tail + from) % capacity;
  const first = min(to - from, capacity - at);
  readSync(ringsFd, target, from, first, RING_HEADER + at);
  if (first < to - from) readSync(ringsFd, target, from + first, to - from - first, RING_HEADER);
}

let request = 0;
let executionCount = 0;
/// The cell that runs or awaits.
let cell = null;
/// A cell's script is running, so that SIGINT ends it.
let isInScript = false;
let isSupervisorGone = false;
let needsUnwind = false;

function onBell() {
  readInput();
  nextRequest();
  unwind();
}

/// Ends a callback with an error after an interrupt: Node then resets its stack of async contexts, which V8 left as it was.
function unwind() {
  if (!needsUnwind) return;
  needsUnwind = false;
  keepListening();
  throw unwound;
}

function nextRequest() {
  while (input.length > 0) {
    if (cell) return;
    const next = input[0];
    input = input.length === 1 ? [] : input.slice(1);
    if (next.type === HELLO) hello(next);
    else if (next.type === EXECUTE) execute(next);
    else if (next.type === COMPLETENESS) answerCompleteness(next);
  }
  if (isSupervisorGone && !cell) exitNow(0);
}

function hello({ id, payload }) {
  request = id;
  const { cwd, env } = parse(toText(payload));
  for (const name of keys(env || {})) process.env[name] = env[name];
  try {
    if (cwd) process.chdir(cwd);
  } catch (error) {
    process._rawDebug(`cannot enter ${cwd}: ${error.message}`);
    exitNow(1);
  }
  makeModule();
  sendText(READY, stringify({ protocol: 1, language: 'javascript', version: slice(process.version, 1), pid: process.pid }));
}

function execute({ id, payload }) {
  request = id;
  executionCount++;
  const name = `[cell-${executionCount}]`;
  cell = { name, source: '', code: '', clashes: null, state: 'running', value: undefined, error: undefined, details: null,
    exit: null, poll: null, text: '', type: 0, isEnding: false, isReplied: true, promise: null };
  takeInterrupt();
  keepListening();
  if (!isValidUtf8(payload)) {
    cell.state = 'failed';
    cell.error = new SyntaxError('the source is not valid UTF-8');
    cell.error.stack = `${cell.error}`;
  } else {
    cell.source = toText(payload);
  }
  runJob(startCell, cell);
}

function isValidUtf8(bytes) {
  if (isUtf8) return isUtf8(bytes);
  try {
    new util.TextDecoder('utf-8', { fatal: true }).decode(bytes);
    return true;
  } catch {
    return false;
  }
}

// Node's thread that waits for SIGINT is kept running between cells. Each cell would otherwise start and join it, and a signal
// between two of them would end the process. Where a later Node hides these functions, a listener takes their place.
const watchdog = openWatchdog();
const sigintSlot = '__cofferdam_job__';
const script = new vm.Script(`${sigintSlot}()`, { filename: WORKER_FILE });
const breakable = { breakOnSigint: true };
let job = null;
let jobCell = null;
let isSigintSeen = false;

class Interrupted extends Error { }
const unwound = new Interrupted();

defineProperty(globalThis, sigintSlot, { value: () => job !== null && job(jobCell) });

function openWatchdog() {
  try {
    const { startSigintWatchdog: start, stopSigintWatchdog: stop } = process.binding('contextify');
    start();
    return { start, stop };
  } catch {
    return null;
  }
}

/// Returns true if SIGINT came since the last look while no cell's script ran.
function takeInterrupt() {
  if (watchdog) {
    watchdog.start();
    return watchdog.stop();
  }
  const seen = isSigintSeen;
  isSigintSeen = false;
  return seen;
}

/// Runs a part of a cell where SIGINT can end it, then ends the cell if it is done.
function runJob(work, of) {
  job = work;
  jobCell = of;
  isInScript = true;
  let isInterrupted = false, fault = null;
  try {
    apply(runInThisContext, script, [breakable]);
  } catch (error) {
    isInterrupted = error?.code === 'ERR_SCRIPT_EXECUTION_INTERRUPTED';
    fault = error;
  }
  isInScript = false;
  job = jobCell = null;
  if (isInterrupted) {
    needsUnwind = true;
    stopHook?.();
    head = readPosition(outputRing + HEAD);
    interruptCell();
  } else if (fault !== null) {
    // Code of the user broke something that this file depends on.
    of.state = 'failed';
    of.type = ERROR;
    of.text = stringify({ name: 'Error', value: 'the outcome of the call cannot be described', traceback: guarded(() => `${fault.stack}`, '') });
  }
  if (of.state === 'running') of.poll ??= setInterval(pollInterrupt, 10);
  else endCell(of);
}

const { runInThisContext } = vm.Script.prototype;

function pollInterrupt() {
  if (cell && cell.state === 'running' && takeInterrupt()) {
    interruptCell();
    endCell(cell);
  }
}

function interruptCell() {
  cell.state = 'interrupted';
  cell.type = ERROR;
  cell.text = stringify({ name: 'Interrupted', value: 'the call was interrupted', traceback: 'Interrupted: the call was interrupted' });
}

const holder = { take(value) { taken = value; } };
let session = null;
let post;
let holderId = '';
let taken;
let stopHook = null;

/// Opens a session, and fetches the id by which it knows the object that takes values out of it. An older session is closed
/// with the replies that it owes.
function openSession() {
  session?.disconnect();
  session = new Session();
  session.connect();
  post = session.post.bind(session);
  const slot = '__cofferdam_holder__';
  globalThis[slot] = holder;
  post('Runtime.evaluate', { expression: slot, objectGroup: 'worker' }, (_, reply) => { holderId = reply.result.objectId; });
  delete globalThis[slot];
}

/// Keeps the promise of an evaluation, the first one made in it, until its reply. Where V8 collects it before, it replies
/// from within the collection, where no code may run: the process would abort.
function keepPromise(promise) {
  if (cell) cell.promise ??= promise;
  stopHook();
}

function startCell(of) {
  if (of.state === 'running') {
    if (hasOwn(Object.prototype, 'toJSON')) {
      // The inspector's own messages would go through it, and no reply would come.
      delete Object.prototype.toJSON;
      sendText(STDERR, 'Object.prototype.toJSON was removed: code cannot be evaluated with it\n');
    }
    evaluate(of, rewrite(of.source, null) ?? of.source);
    drainTicks();
  }
  describeOutcome(of);
}

/// Runs what the cell left to the end of the tick, so that it ends with the cell. An error there is an uncaught one.
function drainTicks() {
  for (let tries = 0; tries < 1000; tries++) {
    try {
      return runTicks();
    } catch (error) {
      needsUnwind = true;
      process.emit('uncaughtException', error, 'uncaughtException');
    }
  }
}

function evaluate(of, code) {
  of.code = code;
  const expression = `${code}\n//# sourceURL=${of.name}`;
  of.promise = null;
  of.isReplied = false;
  stopHook = promiseHooks.onInit(keepPromise);
  post('Runtime.evaluate', { expression, replMode: true, objectGroup: 'cell' }, (fault, reply) => settle(of, fault, reply));
  stopHook();
}

/// Takes the inspector's reply, which comes in a microtask.
function settle(of, fault, reply) {
  of.isReplied = true;
  of.promise = null;
  if (of !== cell || of.state !== 'running') return;
  if (fault) {
    of.error = fault;
    of.state = 'failed';
  } else if (hasOwn(reply, 'exceptionDetails')) {
    const error = takeRemote(reply.exceptionDetails.exception);
    if (isEarlyError(of, error)) {
      const other = otherCode(of, error);
      if (other !== null) return evaluate(of, other);
      of.details = reply.exceptionDetails;
    }
    of.error = error;
    of.state = 'failed';
  } else {
    of.value = takeRemote(reply.result);
    of.state = 'done';
  }
  // Rejections that no code handles are reported at the end of the tick, and belong to this cell.
  if (!isInScript) setImmediate(finishLater, of);
}

function finishLater(of) {
  if (of !== cell || of.isEnding) return;
  runJob(describeOutcome, of);
  nextRequest();
  unwind();
}

/// Turns what the inspector tells of a value into the value.
function takeRemote(remote) {
  if (hasOwn(remote, 'objectId')) {
    taken = undefined;
    const call = { objectId: holderId, functionDeclaration: 'function(value) { this.take(value); }', arguments: [{ objectId: remote.objectId }] };
    post('Runtime.callFunctionOn', call);
    post('Runtime.releaseObjectGroup', { objectGroup: 'cell' });
    const value = taken;
    taken = undefined;
    return value;
  }
  if (!hasOwn(remote, 'unserializableValue')) return hasOwn(remote, 'value') ? remote.value : undefined;
  const text = remote.unserializableValue;
  return text[text.length - 1] === 'n' ? BigInt(slice(text, 0, -1)) : Number(text);
}

/// Returns true for an error of the compiler, which no code of the cell ran before. Its trace has no frame of the cell;
/// that of a name that is declared already may have the cell's first position.
function isEarlyError(of, error) {
  if (!(error instanceof SyntaxError) || typeof error.stack !== 'string') return false;
  const frames = replace(error.stack, `at ${of.name}:1:1\n`, '\n');
  return indexOf(frames, '\n    at ') >= 0 && indexOf(frames, of.name) < 0;
}

/// Returns the code to try after an error of the compiler: names that were declared in another way get that one; what the
/// rewriting may have broken is run as it was written.
function otherCode(of, error) {
  const clash = exec(/^Identifier '(.+)' has already been declared$/, error.message);
  const isOwnError = clash && compileError(`async () => {${of.source}\n}`)?.message === error.message;
  if (clash && !isOwnError && !of.clashes?.has(clash[1])) {
    of.clashes ??= new Set();
    of.clashes.add(clash[1]);
    const other = rewrite(of.source, of.clashes);
    if (other !== null && other !== of.code) return other;
  }
  return of.code === of.source || clash ? null : of.source;
}

/// Makes the document of a cell's result or error. It calls code of the user: inspect hooks, getters.
function describeOutcome(of) {
  if (of.state === 'running') return;
  if (of.exit) {
    of.state = 'failed';
    of.error = of.exit;
  }
  if (of.state === 'failed') {
    of.type = ERROR;
    of.text = describeError(of.error, of);
  } else if (of.value !== undefined) {
    lastResult = of.value;
    of.text = bundleText(bundleOf(of.value));
    of.type = RESULT;
  }
}

function endCell(of) {
  if (of !== cell || of.isEnding) return;
  of.isEnding = true;
  if (of.poll) clearInterval(of.poll);
  if (!of.isReplied) openSession();
  whenDrained(() => {
    if (of.type !== 0) sendText(of.type, of.text, false);
    const status = of.state === 'failed' ? 'error' : of.state === 'done' ? 'ok' : 'interrupted';
    writePosition(outputRing + FRAMES, frames + 1);
    sendText(END, `{"status":"${status}","execution_count":${executionCount}}`);
    cell = null;
    if (isSupervisorGone || input.length > 0) setImmediate(nextRequest);
  });
}

class ExitError extends Error {
  constructor(code) {
    super(code === undefined ? 'process.exit()' : `process.exit(${String(code)})`);
    this.name = 'ExitError';
  }
}

/// Returns the JSON text of an `ERROR`.
function describeError(error, of) {
  let name = 'Uncaught', value, traceback;
  if (isNativeError(error) || error instanceof Error) {
    name = guarded(() => `${error.name}`, 'Error');
    value = guarded(() => `${error.message}`, '');
    traceback = error instanceof ExitError ? `${name}: ${value}` : describe(error);
    if (of?.details) traceback = `${codeFrame(of)}\n\n${name}: ${value}`;
  } else {
    value = describe(error);
    traceback = `Uncaught ${value}`;
  }
  return stringify({ name: bounded(name), value: bounded(value), traceback: bounded(traceback) });
}

function guarded(read, otherwise) {
  try {
    return read();
  } catch {
    return otherwise;
  }
}

function bounded(text) {
  const limit = 1 << 20;
  return text.length <= limit ? text : `${slice(text, 0, limit)}... ${text.length - limit} more characters`;
}

/// Returns the line that a compiler's error is at, as Node prints it.
function codeFrame({ code, name, details: { lineNumber, columnNumber } }) {
  const line = split(code, '\n')[lineNumber] ?? '';
  const from = max(0, columnNumber - 100);
  const indent = replace(slice(line, from, columnNumber), /[^\t]/g, ' ');
  return `${name}:${lineNumber + 1}\n${slice(line, from, columnNumber + 100)}\n${indent}^`;
}

/// Returns `util.inspect` of a value. Hooks of the value may throw; a proxy's are not called.
function describe(value) {
  try {
    return withoutWorkerFrames(inspect(value));
  } catch (error) {
    return guarded(() => withoutWorkerFrames(inspect(value, { customInspect: false })),
      isNativeError(value) ? guarded(() => `${value.stack}`, 'Error') : `[value that cannot be inspected: ${guarded(() => `${error.message}`, '?')}]`);
  }
}

/// Removes the frames below a cell's code from traces. Text behind a removed frame, like the brace of an error's properties, stays.
function withoutWorkerFrames(text) {
  if (indexOf(text, '\n') < 0 || (indexOf(text, WORKER_FILE) < 0 && indexOf(text, 'node:in') < 0)) return text;
  const lines = split(text, '\n'), kept = [];
  let isBelow = false;
  for (let n = 0; n < lines.length; n++) {
    const line = lines[n];
    if (!test(/^\s+at /, line)) {
      isBelow = false;
    } else if (isBelow || test(/node:inspector:|node:internal\/process\/task_queues:|cofferdam-worker\.js:/, line)) {
      isBelow ||= test(/node:inspector:/, line);
      const rest = exec(/:\d+:\d+\)?(\D*)$/, line)?.[1];
      if (rest && kept.length > 0) kept[kept.length - 1] += rest;
      continue;
    }
    push(kept, line);
  }
  return join(kept, '\n');
}

function onUncaught(error, origin) {
  if (error instanceof ExitError || error instanceof Interrupted) return;
  const event = origin === 'rejection' ? 'unhandledRejection' : 'uncaughtException';
  if (process.listenerCount(event) > 1) return;
  sendText(STDERR, `Uncaught ${origin === 'rejection' ? '(in promise) ' : ''}${bounded(describe(error))}\n`);
}

const onException = (error) => onUncaught(error, 'exception');
const onRejection = (error) => onUncaught(error, 'rejection');

/// Listens again where user code removed all listeners: an uncaught error would end the process.
function keepListening() {
  if (!includes(process.listeners('uncaughtException'), onException)) process.on('uncaughtException', onException);
  if (!includes(process.listeners('unhandledRejection'), onRejection)) process.on('unhandledRejection', onRejection);
}

const MIME_TYPE = /^[a-z]+\/[\w.+-]+$/;
const HOOKS = [['_toHtml', 'text/html'], ['_toSvg', 'image/svg+xml'], ['_toPng', 'image/png'], ['_toJpeg', 'image/jpeg'], ['_toMarkdown', 'text/markdown']];
const jupyterDisplay = Symbol.for('Jupyter.display');
let lastResult;

/// Returns a value in several representations: JSON texts by MIME type, in an object without a prototype.
function bundleOf(value) {
  const bundle = { __proto__: null };
  if (value !== null && (typeof value === 'object' || typeof value === 'function') && !isProxy(value)) {
    guarded(() => addHooks(bundle, value));
    if (bundle['application/json'] === undefined) {
      const text = guarded(() => plainJson(value));
      if (text !== undefined) bundle['application/json'] = text;
    }
  }
  bundle['text/plain'] ??= stringify(describe(value));
  return bundle;
}

function addHooks(bundle, value) {
  for (const hook of [jupyterDisplay, '_toMime']) {
    if (typeof value[hook] === 'function') addTypes(bundle, value[hook]());
  }
  for (const [hook, type] of HOOKS) {
    if (typeof value[hook] === 'function') addTypes(bundle, { [type]: value[hook]() });
  }
}

function addTypes(bundle, types) {
  if (types === null || typeof types !== 'object') return;
  for (const type of keys(types)) {
    if (test(MIME_TYPE, type) && types[type] !== undefined) bundle[type] = encode(type, types[type]);
  }
}

/// Returns the JSON text of one representation.
function encode(type, content) {
  if (content instanceof Uint8Array) content = toText(Buffer.from(content.buffer, content.byteOffset, content.length), type === 'image/svg+xml' ? 'utf8' : 'base64');
  if (test(/[/+]json$/, type)) return stringify(content) ?? 'null';
  return stringify(`${content}`);
}

function bundleText(bundle) {
  const types = [];
  for (const type of keys(bundle)) push(types, `${stringify(type)}:${bundle[type]}`);
  return `{"data":{${join(types, ',')}},"metadata":{}}`;
}

/// Returns the JSON text of a small array or object of plain data; none of one with getters, other prototypes or cycles.
function plainJson(value) {
  let left = 16384;
  const write = (item, depth) => {
    let text;
    if (item === null || typeof item === 'boolean') text = `${item}`;
    else if (typeof item === 'string') text = item.length < left ? stringify(item) : undefined;
    else if (typeof item === 'number') text = item - item === 0 ? `${item}` : undefined;
    else if (typeof item !== 'object' || depth > 16 || isProxy(item)) return undefined;
    else return isArray(item) ? writeArray(item, depth) : writeObject(item, depth);
    left -= text === undefined ? left : text.length + 1;
    return left > 0 ? text : undefined;
  };
  const writeProperty = (item, key, depth) => {
    const property = getOwnPropertyDescriptor(item, key);
    return property && hasOwn(property, 'value') ? write(property.value, depth + 1) : undefined;
  };
  const writeArray = (item, depth) => {
    if (getPrototypeOf(item) !== Array.prototype || item.length > left) return undefined;
    const texts = [];
    for (let n = 0; n < item.length; n++) {
      const text = writeProperty(item, n, depth);
      if (text === undefined) return undefined;
      push(texts, text);
    }
    return `[${join(texts, ',')}]`;
  };
  const writeObject = (item, depth) => {
    const prototype = getPrototypeOf(item);
    if (prototype !== Object.prototype && prototype !== null) return undefined;
    const texts = [];
    for (const key of keys(item)) {
      const text = writeProperty(item, key, depth);
      if (text === undefined || (left -= key.length + 4) < 0) return undefined;
      push(texts, `${stringify(key)}:${text}`);
    }
    return `{${join(texts, ',')}}`;
  };
  return typeof value === 'object' ? write(value, 0) : undefined;
}

/// Shows values: each by its own representations, or as the bundle that it is, with MIME types as its keys.
function display(...values) {
  for (const value of values) sendText(DISPLAY, bundleText(isBundle(value) ? typesOf(value) : bundleOf(value)));
}

function isBundle(value) {
  if (value === null || typeof value !== 'object' || isProxy(value)) return false;
  const types = keys(value);
  return types.length > 0 && types.every((type) => test(MIME_TYPE, type));
}

function typesOf(types) {
  const bundle = { __proto__: null };
  addTypes(bundle, types);
  return bundle;
}

const SHORT_TYPES = { html: 'text/html', markdown: 'text/markdown', svg: 'image/svg+xml', png: 'image/png', jpeg: 'image/jpeg', json: 'application/json', text: 'text/plain' };
for (const name of keys(SHORT_TYPES)) display[name] = (content) => display({ [SHORT_TYPES[name]]: content ?? null });

const BLOCK = 0, OBJECT = 1, CLASS = 2, FUNCTION = 3, TEMPLATE = 4, PAREN = 5, CONTROL = 6, BRACKET = 7;
const MAX_DEPTH = 100000;
const ID = '[\\p{ID_Start}$_][\\p{ID_Continue}$\\u200c\\u200d]*';
const STRING = `"[^"\\\\\\n\\r]*(?:\\\\[^][^"\\\\\\n\\r]*)*"|'[^'\\\\\\n\\r]*(?:\\\\[^][^'\\\\\\n\\r]*)*'`;
/// White space, name, number, string, and everything else.
const TOKEN = new RegExp(`(\\s+|//[^\\n\\r]*|/\\*[^]*?\\*/)|(${ID})|(\\d[\\w.]*|\\.\\d[\\w.]*)|(${STRING})|(?:=>|\\+\\+|--|\\?\\.(?!\\d)|\\.\\.\\.|[^])`, 'uy');
const REGEX = /\/(?:[^\\/[\n\r]|\\[^\n\r]|\[(?:[^\]\\\n\r]|\\[^\n\r])*\])+\/[\p{ID_Continue}$]*/uy;
const TEMPLATE_TEXT = /[^`\\$]*(?:(?:\\[^]|\$(?!\{))[^`\\$]*)*/uy;
const SPACE = /(?:\s+|\/\/[^\n\r]*|\/\*[^]*?\*\/)*/uy;
const ATTRIBUTES = '(?:\\s*(?:with|assert)\\s*(\\{[^{}]*\\}))?';
const BINDINGS = `\\*\\s*as\\s+(${ID})|(\\{[^{}]*\\})`;
const IMPORT = new RegExp(`import\\s*(?:(?:(${ID})(?:\\s*,\\s*(?:${BINDINGS}))?|${BINDINGS})\\s*from\\s*)?(${STRING})${ATTRIBUTES}\\s*;?`, 'uy');
const NEEDS_REWRITING = /\b(?:const|import|export)\b/;
/// Names after which an expression begins.
const OPERATORS = new Set(['return', 'typeof', 'instanceof', 'in', 'of', 'new', 'delete', 'void', 'throw', 'case', 'do', 'else', 'await', 'yield', 'extends', 'default']);
const CONTROLS = new Set(['if', 'for', 'while', 'switch', 'with', 'catch']);
const DECLARED = /^(?:const|let|var|function|class|async)$/;
/// The function that takes the place of `import`; it is as long, so that columns of errors stay.
const IMPORTER = '__imp_';

/// Returns the code of a cell for V8's REPL mode, or null where the tokens make no sense: it is then run as it is.
///
/// `clashes` are names that an earlier cell declared in a way that V8 does not let this cell's way follow. Their declarations
/// are changed: `let` and `class` to `var`, `var` and functions to `let`.
function rewrite(source, clashes) {
  if (!clashes && !test(NEEDS_REWRITING, source)) return source;
  const scan = guarded(() => scanTokens(source, clashes), null);
  return scan && scan.isBalanced && scan.open.length === 0 ? applyEdits(source, scan.edits) : null;
}

function applyEdits(source, edits) {
  edits.sort((a, b) => a.at - b.at);
  const parts = [];
  let at = 0;
  for (const edit of edits) {
    push(parts, slice(source, at, edit.at), edit.text);
    at = edit.end;
  }
  return join(parts, '') + slice(source, at);
}

/// Reads the tokens of a source: the changes to make, and the brackets that stay open.
function scanTokens(source, clashes) {
  const edits = [], open = [];
  const scan = { edits, open, isBalanced: true, isInText: false, isInImport: false };
  // The token before, what follows it, and its bracket if it closes one.
  let before = '', isOperand = false, beforeBefore = '';
  let functions = 0, pendingClass = false, declaration = null, definition = null;
  const edit = (at, end, text) => {
    const made = { at, end, text };
    push(edits, made);
    return made;
  };
  const top = () => open.length > 0 ? open[open.length - 1] : -1;
  const nextChar = (at) => {
    SPACE.lastIndex = at;
    exec(SPACE, source);
    return source[SPACE.lastIndex];
  };
  const readTemplate = (at) => {
    TEMPLATE_TEXT.lastIndex = at;
    exec(TEMPLATE_TEXT, source);
    const end = TEMPLATE_TEXT.lastIndex;
    if (source[end] === '`') {
      before = '`';
      isOperand = true;
      return end + 1;
    }
    scan.isInText = end >= source.length;
    if (scan.isInText) return source.length;
    push(open, TEMPLATE);
    before = '${';
    isOperand = false;
    return end + 2;
  };
  const openBrace = () => {
    if (pendingClass) {
      pendingClass = false;
      return CLASS;
    }
    if (before === 'closed control' || (before === 'name' && !OPERATORS.has(beforeBefore))) return top() === CLASS ? FUNCTION : BLOCK;
    if (before === ')' || before === '=>') return FUNCTION;
    if (before === 'name') return beforeBefore === 'else' || beforeBefore === 'do' ? BLOCK : OBJECT;
    if (before === '' || before === ';' || before === '}' || before === '{') return BLOCK;
    return before === ':' && top() !== OBJECT && top() !== PAREN && top() !== BRACKET ? BLOCK : OBJECT;
  };
  const close = (kinds) => {
    const kind = open.pop();
    if (!includes(kinds, kind)) scan.isBalanced = false;
    return kind;
  };
  const endsStatement = () => before === '' || before === ';' || before === '}' || isOperand || before === 'closed control';
  const readName = (name, at, end) => {
    const isProperty = before === '.' || before === '?.';
    const isTop = open.length === 0;
    if (declaration?.isBinding && clashes?.has(name)) {
      declaration.isBinding = false;
      declaration.edit ??= edit(declaration.at, declaration.end, '');
      declaration.edit.text = declaration.text;
    } else if (definition && !definition.isNamed) {
      definition.isNamed = true;
      if (clashes?.has(name)) edit(definition.at, definition.at, `${definition.keyword} ${name} = `);
      else definition = null;
    } else if (!isProperty && (name === 'const' || name === 'let' || name === 'var')) {
      const isDeclaration = name !== 'let' || test(/[\p{ID_Start}$_[{]/u, nextChar(end) ?? '');
      if (isTop && isDeclaration) {
        const text = name === 'var' ? 'let' : name === 'let' ? 'var' : 'var  ';
        declaration = { at, end, text, depth: 0, isBinding: true, edit: name === 'const' ? edit(at, end, 'let  ') : null };
      } else if (name === 'var' && functions === 0) {
        declaration = { at, end, text: '   ', depth: open.length, isBinding: true, edit: null };
      }
    } else if (name === 'import' && !isProperty) {
      const next = nextChar(end);
      const isMethod = next === '(' && (top() === CLASS || (top() === OBJECT && (before === '{' || before === ',')));
      if ((next === '(' || next === '.') && !isMethod) edit(at, end, IMPORTER);
      else if (isTop && endsStatement()) {
        const after = readImport(source, at, clashes, edit);
        if (after !== null) return after;
        scan.isInImport = true;
      }
    } else if (isTop && name === 'export' && endsStatement()) {
      TOKEN.lastIndex = end + 1;
      if (test(DECLARED, exec(TOKEN, source)?.[2] ?? '')) edit(at, end, ' '.repeat(end - at));
      before = ';';
      isOperand = false;
      return end;
    } else if (isTop && clashes && !isProperty && (name === 'function' || name === 'class') && endsStatement()) {
      const isAsync = before === 'name' && beforeBefore === 'async';
      definition = { at: isAsync ? source.lastIndexOf('async', at) : at, keyword: name === 'class' ? 'var' : 'let', isNamed: false };
    } else if (declaration && (name === 'of' || name === 'in') && open.length === declaration.depth) {
      declaration.isBinding = false;
    }
    if (name === 'class' && !isProperty && nextChar(end) !== ':' && nextChar(end) !== '(') pendingClass = true;
    beforeBefore = isProperty ? '' : name;
    before = 'name';
    isOperand = isProperty || !OPERATORS.has(name);
    return end;
  };
  const readMark = (mark, at, end) => {
    let kind;
    switch (mark) {
      case '(':
        push(open, before === 'name' && CONTROLS.has(beforeBefore) || (beforeBefore === 'await' && before === 'name') ? CONTROL : PAREN);
        break;
      case '[':
        push(open, BRACKET);
        break;
      case '{':
        kind = openBrace();
        if (kind === FUNCTION || kind === CLASS) functions++;
        push(open, kind);
        break;
      case ')':
        kind = close([PAREN, CONTROL]);
        before = kind === CONTROL ? 'closed control' : ')';
        isOperand = kind === PAREN;
        return end;
      case ']':
        close([BRACKET]);
        before = ']';
        isOperand = true;
        return end;
      case '}':
        kind = close([BLOCK, OBJECT, CLASS, FUNCTION, TEMPLATE]);
        if (kind === TEMPLATE) return readTemplate(end);
        if (kind === FUNCTION || kind === CLASS) functions--;
        if (open.length === 0 && definition?.isNamed && kind !== OBJECT) {
          edit(end, end, ';');
          definition = null;
        }
        before = '}';
        isOperand = kind === OBJECT;
        return end;
      case '/':
        REGEX.lastIndex = at;
        if (!isOperand && exec(REGEX, source)) {
          before = 'regex';
          isOperand = true;
          return REGEX.lastIndex;
        }
        if (slice(source, at, at + 2) === '/*') {
          scan.isInText = true;
          return source.length;
        }
        break;
      case '`':
        return readTemplate(end);
      case '"': case "'":
        // A string that does not end: the line goes on if a backslash is its last character.
        scan.isInText = source[source.length - 1] === '\\' || source.endsWith('\\\n');
        scan.isBalanced = false;
        return scan.isInText ? source.length : end;
      case '++': case '--':
        before = mark;
        return end;
    }
    if (declaration && open.length === declaration.depth) {
      if (mark === '=') declaration.isBinding = false;
      else if (mark === ',') declaration.isBinding = true;
      else if (mark === ';') declaration = null;
    }
    before = mark;
    isOperand = false;
    return end;
  };
  for (let at = slice(source, 0, 2) === '#!' ? source.search(/\n|$/) : 0; at < source.length;) {
    TOKEN.lastIndex = at;
    const found = exec(TOKEN, source);
    const end = TOKEN.lastIndex;
    if (found[1] !== undefined) {
      at = end;
    } else if (found[2] !== undefined) {
      at = readName(found[2], at, end);
    } else if (found[3] !== undefined || found[4] !== undefined) {
      before = 'literal';
      isOperand = true;
      at = end;
    } else {
      at = readMark(found[0], at, end);
    }
    if (open.length > MAX_DEPTH) scan.isBalanced = false;
    if (!scan.isBalanced) break;
  }
  return scan;
}

/// Changes an `import` declaration to `await import(...)` with the same number of lines. Returns where it ends.
function readImport(source, at, clashes, edit) {
  IMPORT.lastIndex = at;
  const found = exec(IMPORT, source);
  if (!found) return null;
  const [text, byDefault, space, braces, onlySpace, onlyBraces, from, attributes] = found;
  const namespace = space ?? onlySpace;
  const list = replace(replace(braces ?? onlyBraces ?? '', /\/\*[^]*?\*\/|\/\/[^\n]*/g, ''), /[{}\s]+/g, ' ');
  const names = split(list, ',').map((name) => replace(trim(name), / as /, ': ')).filter((name) => name !== '');
  if (byDefault) names.unshift(`default: ${byDefault}`);
  const isClash = clashes && [...clashes].some((name) => name === namespace || names.some((item) => item.endsWith(name)));
  const keyword = isClash ? 'var' : 'let';
  const value = `await ${IMPORTER}(${from}${attributes ? `, { with: ${replace(attributes, /\n/g, ' ')} }` : ''})`;
  const pattern = `{ ${join(names, ', ')} }`;
  let code = `void ${value}`;
  if (namespace) code = `${keyword} ${namespace} = ${value}${byDefault ? `, ${pattern} = ${namespace}` : ''}`;
  else if (names.length > 0 || onlyBraces) code = `${keyword} ${pattern} = ${value}`;
  edit(at, IMPORT.lastIndex, `${code};${'\n'.repeat(split(text, '\n').length - 1)}`);
  return IMPORT.lastIndex;
}

const AT_END = /^(?:Unexpected end of input|Unterminated template literal|missing \) after argument list)/;

function answerCompleteness({ id, payload }) {
  request = id;
  sendText(COMPLETE, stringify(completeness(toText(payload))));
}

function completeness(source) {
  const scan = guarded(() => scanTokens(source, null));
  const code = scan && scan.isBalanced && scan.open.length === 0 ? applyEdits(source, scan.edits) : source;
  if (scan?.isBalanced !== false && compileError(`(async () => {${code}\n})`) === null) return { status: 'complete' };
  if (compileError(source) === null) return { status: 'complete' };
  const indent = '  '.repeat(min(scan?.open.length ?? 0, 40));
  if (scan?.isInText) return { status: 'incomplete', indent: '' };
  if (scan?.isInImport) return scan.open.length > 0 ? { status: 'incomplete', indent } : { status: 'invalid' };
  // The body of this function is not closed: a source that lacks its end fails at the end, whatever it lacks.
  const error = compileError(`async () => {${code}`);
  const isIncomplete = scan?.isBalanced !== false && error !== null && test(AT_END, error.message) && isAtEnd(error, code);
  return isIncomplete ? { status: 'incomplete', indent } : { status: 'invalid' };
}

function compileError(code) {
  try {
    new vm.Script(code, { filename: 'code' });
    return null;
  } catch (error) {
    return error;
  }
}

/// Returns true if an error is at the end of the source; `f(1 2` has the message of `f(1`.
function isAtEnd(error, code) {
  if (!error.message.startsWith('missing')) return true;
  const place = exec(/^code:(\d+)\n/, `${error.stack}`);
  return place !== null && Number(place[1]) === split(code, '\n').length && !test(/\n[^\n]*\n\s*\^+\s*\n/, `\n${error.stack}`) ||
    test(/\^\s*\n\nSyntaxError/, `${error.stack}`) && caretIsAtEnd(`${error.stack}`);
}

function caretIsAtEnd(stack) {
  const [, line, carets] = split(stack, '\n');
  return carets !== undefined && indexOf(carets, '^') >= line.trimEnd().length - 1;
}

/// Makes `require`, `module` and `import` of the cells: those of a module in the working directory.
function makeModule() {
  const file = path.join(process.cwd(), '[cell]');
  const main = new Module(file, null);
  main.filename = file;
  main.paths = Module._nodeModulePaths(process.cwd());
  main._compile('module.exports = [require, (name, options) => options === undefined ? import(name) : import(name, options)]', file);
  const [require, importModule] = main.exports;
  main.exports = {};
  main.loaded = true;
  importModule.meta = { __proto__: null, url: pathToFileURL(file).href, filename: file, dirname: process.cwd(), resolve: (name) => pathToFileURL(require.resolve(name)).href };
  defineGlobal('require', require);
  defineGlobal('module', main);
  defineGlobal('exports', main.exports);
  defineProperty(globalThis, IMPORTER, { value: importModule });
  delete globalThis.__filename;
  delete globalThis.__dirname;
}

function defineGlobal(name, value) {
  defineProperty(globalThis, name, { value, writable: true, configurable: true, enumerable: false });
}

/// Makes `_` the last result until code assigns to it.
function defineLastResult() {
  defineProperty(globalThis, '_', {
    configurable: true,
    enumerable: false,
    get: () => lastResult,
    set: (value) => defineGlobal('_', value),
  });
}

/// Sends what code writes to a stream, in the order of the writes.
function sendOutput(type, chunk, encoding) {
  if (typeof chunk !== 'string') sendBytes(type, chunk);
  else if (encoding === undefined || encoding === null || encoding === 'utf8' || encoding === 'utf-8') chunk !== '' && sendText(type, chunk);
  else sendBytes(type, Buffer.from(chunk, encoding));
}

/// Returns the stream that takes the place of `process.stdout` or `process.stderr`.
function makeStream(type, fd) {
  const stream = new Writable({
    decodeStrings: false,
    write(chunk, encoding, callback) {
      sendOutput(type, chunk, encoding);
      callback();
    },
  });
  const { write } = stream;
  // Writes skip the queue of a Writable, which an interrupt could leave in the middle of one. What is no text or bytes takes
  // the usual path to its error.
  stream.write = function (chunk, encoding, callback) {
    if (typeof encoding === 'function') {
      callback = encoding;
      encoding = undefined;
    }
    if (typeof chunk !== 'string' && !(chunk instanceof Uint8Array)) return apply(write, stream, [chunk, encoding, callback]);
    sendOutput(type, chunk, encoding);
    if (typeof callback === 'function') process.nextTick(callback, null);
    return true;
  };
  // As Node's own: the stream can be written to after an end.
  stream._destroy = function (error, callback) {
    callback(error);
    stream._undestroy();
  };
  stream.destroySoon = stream.destroy;
  stream.fd = fd;
  stream._type = 'pipe';
  stream._isStdio = true;
  return stream;
}

function replaceStreams() {
  for (const [name, type, fd] of [['stdout', STDOUT, 1], ['stderr', STDERR, 2]]) {
    defineProperty(process, name, { value: makeStream(type, fd), writable: true, configurable: true, enumerable: true });
  }
  // The inspector would keep every value that the usual console logs while its session is open.
  const { Console } = console;
  const plain = new Console({ stdout: process.stdout, stderr: process.stderr, ignoreErrors: false });
  for (const name of keys(plain)) if (typeof plain[name] === 'function') console[name] = plain[name];
  process.removeAllListeners('warning');
  process.on('warning', (warning) => {
    if (!process.noDeprecation || warning.name !== 'DeprecationWarning') sendText(STDERR, `(node:${process.pid}) ${warning.stack && process.traceProcessWarnings ? warning.stack : warning}\n`);
  });
}

/// Returns the stream that a descriptor is, if it is one of ours.
function streamOf(file) {
  if (file === 1 || file === '/dev/stdout') return STDOUT;
  return file === 2 || file === '/dev/stderr' ? STDERR : 0;
}

/// Gives writes to the descriptors 1 and 2 to the streams, and keeps the worker's own descriptors open.
function replaceFileCalls() {
  const { write, close, writeFileSync, appendFileSync } = fs;
  const bytesOf = (data, options) => {
    if (typeof data === 'string') return Buffer.from(data, typeof options[1] === 'string' ? options[1] : 'utf8');
    const [at, length] = typeof options[0] === 'object' && options[0] !== null ? [options[0].offset, options[0].length] : options;
    const bytes = Buffer.from(data.buffer, data.byteOffset, data.byteLength);
    return subarray(bytes, at ?? 0, (at ?? 0) + (length ?? bytes.length - (at ?? 0)));
  };
  const send = (fd, data, options) => {
    const bytes = bytesOf(data, options);
    sendBytes(streamOf(fd), bytes);
    return bytes.length;
  };
  const isData = (data) => typeof data === 'string' || ArrayBuffer.isView(data);
  const isOurs = (fd) => fd === ringsFd || fd === bellFd;
  const busy = () => defineProperty(new Error('EBADF: bad file descriptor, close'), 'code', { value: 'EBADF' });
  fs.writeSync = function (fd, data, ...options) {
    return streamOf(fd) && isData(data) ? send(fd, data, options) : apply(writeSync, fs, [fd, data, ...options]);
  };
  fs.write = function (fd, data, ...options) {
    const callback = options[options.length - 1];
    if (!streamOf(fd) || !isData(data) || typeof callback !== 'function') return apply(write, fs, [fd, data, ...options]);
    process.nextTick(callback, null, send(fd, data, options.slice(0, -1)), data);
  };
  for (const [name, call] of [['writeFileSync', writeFileSync], ['appendFileSync', appendFileSync]]) {
    fs[name] = function (file, data, options) {
      if (!streamOf(file) || !isData(data)) return apply(call, fs, [file, data, options]);
      send(file, data, [null, typeof options === 'string' ? options : options?.encoding]);
    };
  }
  fs.closeSync = function (fd) {
    if (isOurs(fd)) throw busy();
    return closeSync(fd);
  };
  fs.close = function (fd, callback) {
    if (!isOurs(fd)) return apply(close, fs, arguments);
    process.nextTick(callback ?? (() => { }), busy());
  };
}

// Node cannot move descriptors, so 1 and 2 stay those that the supervisor's process reads. Children that would inherit them get
// pipes instead, whose text is sent as frames: as it comes from an asynchronous child, and when it has ended from a
// synchronous one. Their standard output and error keep their order each, but not between them.

/// Pipes of children that ended, whose text is not all read. A cell ends after them, so that the text is part of it.
const draining = new Set();
const DRAIN_MS = 50;
let onDrained = null;
let nullFd = -1;

function whenDrained(then) {
  if (draining.size === 0) return then();
  const timer = setTimeout(() => onDrained?.(), DRAIN_MS);
  onDrained = () => {
    onDrained = null;
    clearTimeout(timer);
    then();
    nextRequest();
  };
}

function forward(child, stream, type) {
  const drained = () => {
    if (draining.delete(stream) && draining.size === 0) onDrained?.();
  };
  stream.on('data', (chunk) => sendBytes(type, chunk));
  stream.on('error', () => { });
  stream.on('close', () => {
    stream.isClosed = true;
    drained();
  });
  child.on('exit', () => stream.isClosed || draining.add(stream));
}

/// Returns the stream that an entry of `stdio` inherits.
function inherited(entry, n) {
  if (n === 0) return 0;
  if (entry === 'inherit') return streamOf(n);
  return streamOf(typeof entry === 'number' ? entry : entry?.fd);
}

function replaceSpawn() {
  const { ChildProcess } = childProcess;
  const { spawn } = ChildProcess.prototype;
  const names = ['stdin', 'stdout', 'stderr'];
  ChildProcess.prototype.spawn = function (options) {
    const given = options?.stdio ?? 'pipe';
    const stdio = typeof given === 'string' ? [given, given, given] : isArray(given) ? [...given] : null;
    if (!stdio) return apply(spawn, this, arguments);
    const forwards = [];
    for (let n = 1; n < stdio.length; n++) {
      const type = inherited(stdio[n], n);
      if (type === 0) continue;
      stdio[n] = 'pipe';
      push(forwards, [n, type]);
    }
    const count = stdio.length;
    const result = apply(spawn, this, [{ ...options, stdio: hideBell(stdio, (fd) => fd) }]);
    if (!this.stdio) return result;
    this.stdio.length = min(this.stdio.length, count);
    for (const [n, type] of forwards) {
      if (this.stdio[n]) forward(this, this.stdio[n], type);
      this.stdio[n] = null;
      if (n < 3) this[names[n]] = null;
    }
    return result;
  };
  replaceSpawnSync();
}

function replaceSpawnSync() {
  let binding;
  try {
    binding = process.binding('spawn_sync');
  } catch {
    return;
  }
  const { spawn } = binding;
  binding.spawn = function (options) {
    const count = options.stdio.length;
    const types = options.stdio.map((entry, n) => entry.type === 'inherit' || entry.type === 'fd' ? inherited(entry.fd ?? n, n) : 0);
    const stdio = options.stdio.map((entry, n) => types[n] ? { type: 'pipe', readable: false, writable: true } : entry);
    // The bound on captured output does not hold for output that was inherited.
    if (types.some((type) => type !== 0)) options = { ...options, maxBuffer: Infinity };
    const result = spawn({ ...options, stdio: hideBell(stdio, (fd) => fd === 'ignore' ? { type: 'ignore' } : { type: 'fd', fd }) });
    if (!result.output) return result;
    result.output.length = min(result.output.length, count);
    for (let n = 0; n < types.length; n++) {
      if (!types[n]) continue;
      if (result.output[n]) sendBytes(types[n], result.output[n]);
      result.output[n] = null;
    }
    return result;
  };
}

/// Gives children the null device in place of the doorbell: the supervisor would not see the end of a worker whose child
/// still holds it. Node marks descriptors below 16 close-on-exec by itself, and has no call that marks others.
function hideBell(stdio, entry) {
  if (bellFd < 16 || stdio.length > bellFd) return stdio;
  if (nullFd < 0) nullFd = fs.openSync('/dev/null', 'r+');
  while (stdio.length < bellFd) push(stdio, entry('ignore'));
  push(stdio, entry(nullFd));
  return stdio;
}

/// Ends the cell and not the process: the context is the caller's.
function exit(code) {
  const error = new ExitError(code ?? process.exitCode);
  if (cell && !cell.isEnding) {
    cell.exit = error;
    if (!isInScript && cell.state === 'running') {
      cell.state = 'failed';
      setImmediate(finishLater, cell);
    }
  }
  throw error;
}

/// Keeps user code from taking SIGINT over: a listener would end the worker's own handling of it.
function keepSigint() {
  if (!watchdog) {
    process.on('SIGINT', () => { isSigintSeen = true; });
    return;
  }
  for (const listener of process.listeners('newListener')) {
    process.removeListener('newListener', listener);
    process.on('newListener', (name, added) => name === 'SIGINT' || apply(listener, process, [name, added]));
  }
}

function openBell() {
  const onread = { buffer: bellBytes, callback: () => { onBell(); return true; } };
  const socket = new net.Socket({ fd: bellFd, readable: true, writable: false, onread });
  const close = () => {
    isSupervisorGone = true;
    nextRequest();
  };
  socket.on('end', close).on('error', close).on('close', close);
  socket.resume();
}

openSession();
replaceStreams();
replaceFileCalls();
replaceSpawn();
keepSigint();
keepListening();
process.exit = exit;
process.argv.length = 1;
process.execArgv = [];
defineGlobal('display', display);
defineLastResult();
openBell();
// Node assigns to `module` once more when the line that runs this file has ended.
setImmediate(onBell);
