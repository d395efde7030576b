import { execFile } from 'node:child_process'
import { copyFileSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { build } from 'esbuild'
import { afterAll, describe, expect, it } from 'vitest'
import { viewOf } from '../../../src/netlink/attribute.ts'
import { readMessages } from '../../../src/netlink/message.ts'
import { openNetlink } from '../../../src/netlink/native.ts'
import { SystemError, type Transport } from '../../../src/netlink/transport.ts'
import { eventually } from '../../support/patience.ts'
import {
  addon,
  buffer,
  CHILD,
  EBADF,
  getLink,
  inChild,
  NETLINK_ROUTE,
  NLM_F_DUMP,
  openRoute,
  receiveTypes,
  thrownBy,
} from '../../support/route-socket.ts'

const RTM_NEWLINK = 16
const NLMSG_DONE = 3

const scratch = mkdtempSync(join(tmpdir(), 'kprobe-native-'))
afterAll(() => rmSync(scratch, { recursive: true }))

/** Fulfils with what waits at the first time that `watch` calls. */
function nextTypes(transport: Transport): Promise<number[] | undefined> {
  return new Promise((resolve, reject) => {
    const stop = transport.watch(() => {
      stop()
      try {
        resolve(receiveTypes(transport))
      } catch (error) {
        reject(error)
      }
    })
  })
}

/** Runs `body` in a worker that ends in the given way; prints how many sockets are left, if the process lives. */
function inWorker(body: string, end: string): Promise<string> {
  return inChild(`
    const before = sockets()
    const worker = new Worker(${JSON.stringify(`${CHILD};${body};${end}`)}, { eval: true })
    worker.on('message', () => worker.terminate())
    worker.on('error', () => undefined)
    worker.on('exit', async () => { await later(10); console.log('left', sockets() - before) })`)
}

/** An addon whose socket is readable at once whenever it is watched, and fails to receive. */
const FAILING_ADDON = `
exports.abi = 5
exports.calls = { watch: 0, unwatch: 0 }
exports.open = () => ({ portId: 1, sendLimitBytes: 1 })
exports.receive = () => -105
exports.watch = (_, readable) => { exports.calls.watch++; setImmediate(readable); return 0 }
exports.unwatch = () => { exports.calls.unwatch++ }
exports.repeat = () => 0
exports.close = () => undefined`

function failing(name: string) {
  const path = join(scratch, `${name}.cjs`)
  writeFileSync(path, FAILING_ADDON)
  const calls: Record<string, number> = createRequire(import.meta.url)(path).calls
  return { calls, transport: openNetlink({ protocol: NETLINK_ROUTE, addon: path }) }
}

describe('a netlink socket', () => {
  it.each<[string, (transport: Transport) => unknown]>([
    ['synchronously', transport => transport.sendSync(getLink())],
    ['from the thread pool', transport => transport.send(getLink())],
    [
      'as the part of a buffer',
      transport => {
        const arena = new Uint8Array(100).fill(0xff)
        arena.set(getLink(), 36)
        transport.sendSync(arena.subarray(36, 68))
      },
    ],
  ])('answers a request that was sent %s', async (_, send) => {
    const transport = openRoute()
    expect(receiveTypes(transport)).toBeUndefined()
    await send(transport)
    expect(receiveTypes(transport)).toEqual([RTM_NEWLINK])
    expect(receiveTypes(transport)).toBeUndefined()
  })

  it('has a port id of its own and tells the longest datagram it takes', () => {
    const [a, b] = [openRoute(), openRoute()]
    expect(a.portId).toBeGreaterThan(0)
    expect(a.portId).not.toBe(b.portId)
    expect(a.sendLimitBytes).toBeGreaterThan(65536)
    a.sendSync(new Uint8Array(a.sendLimitBytes))
  })

  it('names the call and the error when the kernel refuses', async () => {
    const transport = openRoute()
    const tooLong = new Uint8Array(transport.sendLimitBytes + 1)
    const refusal = { name: 'SystemError', syscall: 'sendmsg', code: 'EMSGSIZE', errno: 90 }
    expect(() => transport.sendSync(tooLong)).toThrow(SystemError)
    expect(thrownBy(() => transport.sendSync(tooLong))).toMatchObject(refusal)
    await expect(transport.send(tooLong)).rejects.toMatchObject(refusal)
    expect(thrownBy(() => transport.join(4096))).toMatchObject({ code: 'EINVAL' })
    expect(() => transport.leave(4096)).toThrow('setsockopt(NETLINK_DROP_MEMBERSHIP, 4096): EINVAL')
    expect(() => openNetlink({ protocol: 31, addon })).toThrow('socket(AF_NETLINK, 31): EPROTONOSUPPORT')
  })

  it('refuses a datagram that does not fit the buffer, and loses it', () => {
    const transport = openRoute()
    for (const size of [64, 0]) {
      transport.sendSync(getLink())
      expect(thrownBy(() => transport.receive(new Uint8Array(size)))).toMatchObject({ code: 'EMSGSIZE' })
      expect(receiveTypes(transport)).toBeUndefined()
    }
  })

  it('rests after a wake in which nothing could be received, and goes on until it is stopped', async () => {
    const { transport, calls } = failing('watched')
    const codes: unknown[] = []
    const stop = transport.watch(() => codes.push(thrownBy(() => transport.receive(buffer()))))
    await eventually(() => codes.length === 3)
    expect(codes).toMatchObject(Array(3).fill({ code: 'ENOBUFS' }))
    expect(calls).toEqual({ watch: 3, unwatch: 3 })
    stop()
    expect(calls).toEqual({ watch: 3, unwatch: 4 })
    await transport.close()
  })

  it('rests as well between the wakes of a request that is repeated', async () => {
    const { transport, calls } = failing('repeating')
    let wakes = 0
    const repetition = transport.repeat?.(buffer(), 1_000, () => wakes++)
    await eventually(() => wakes === 3)
    expect(calls).toEqual({ watch: 3, unwatch: 3 })
    repetition?.stop()
    await transport.close()
  })

  it('joins and leaves groups', () => {
    const transport = openRoute()
    transport.join(1)
    transport.leave(1)
  })

  it('holds the bytes of a send in flight when nobody else does', async () => {
    const printed = inChild(
      `
      const handle = open()
      const lo = Buffer.from('200000001200010000000000000000000000000001'.padEnd(400_000, '0'), 'hex')
      const busy = () => require('node:crypto').pbkdf2('', '', 100_000, 64, 'sha512', () => undefined)
      for (let i = 0; i < 4; i++) busy()
      const sends = []
      for (let i = 0; i < 20; i++) sends.push(addon.send(handle, new Uint8Array(lo)))
      gc()
      const others = Array.from({ length: 50 }, () => new Uint8Array(200_000).fill(255))
      Promise.all(sends).then(results => {
        let answers = 0
        while (addon.receive(handle, others[0], 200000) > 0) answers++
        console.log(results.filter(result => result === 0).length, answers)
      })`,
      '--expose-gc',
    )
    expect(await printed).toBe('20 20')
  })
})

describe('watch', () => {
  it('calls while datagrams are waiting, up to the end of a dump', async () => {
    const transport = openRoute()
    const types: number[] = []
    await new Promise<void>(resolve => {
      const stop = transport.watch(() => {
        types.push(...(receiveTypes(transport) ?? []))
        if (!types.includes(NLMSG_DONE)) return
        stop()
        resolve()
      })
      transport.sendSync(getLink(NLM_F_DUMP))
    })
    expect(types[0]).toBe(RTM_NEWLINK)
    expect(types.at(-1)).toBe(NLMSG_DONE)
  })

  it('stops when told, once', async () => {
    const transport = openRoute()
    let calls = 0
    const stop = transport.watch(() => calls++)
    stop()
    transport.sendSync(getLink())
    const types = nextTypes(transport)
    stop()
    expect(await types).toEqual([RTM_NEWLINK])
    expect(calls).toBe(0)
  })

  it('reads several datagrams in one call, and gives an error on the way with the next one', () => {
    const transport = openRoute()
    const send = (times: number) => {
      for (let i = 0; i < times; i++) transport.sendSync(getLink())
    }
    send(3)
    const into = new Uint8Array(64 * 1024)
    const length = transport.receive(into, 4_096) ?? 0
    expect(readMessages(viewOf(into), length).map(({ type }) => type)).toEqual(Array(3).fill(RTM_NEWLINK))
    expect(transport.receive(into, 4_096)).toBeUndefined()
    send(1)
    const one = transport.receive(into) ?? 0
    send(3)
    // The second one does not fit behind the first, and is lost.
    const short = new Uint8Array(one + 100)
    expect(transport.receive(short, 64)).toBe(one)
    expect(thrownBy(() => transport.receive(short, 64))).toMatchObject({ code: 'EMSGSIZE' })
    expect(transport.receive(short, 64)).toBe(one)
    // A full buffer has no room for another one, whatever the caller says.
    for (const room of [0, -1]) {
      const full = new Uint8Array(one)
      send(2)
      expect([transport.receive(full, room), transport.receive(full, room)]).toEqual([one, one])
      expect(transport.receive(full, room)).toBeUndefined()
    }
  })

  it('takes one watcher at a time', () => {
    const transport = openRoute()
    const stop = transport.watch(() => undefined)
    expect(thrownBy(() => transport.watch(() => undefined))).toMatchObject({ code: 'EBUSY' })
    stop()
    transport.watch(() => undefined)()
  })

  it('goes on after the kernel has dropped datagrams', async () => {
    const transport = openRoute(1)
    for (let i = 0; i < 64; i++) transport.sendSync(getLink())
    await expect(nextTypes(transport)).rejects.toMatchObject({ syscall: 'recvmsg', code: 'ENOBUFS' })
    while (receiveTypes(transport) !== undefined);
    for (let i = 0; i < 64; i++) transport.sendSync(getLink())
    const seen: string[] = []
    await new Promise<void>(resolve => {
      const stop = transport.watch(() => {
        const error = thrownBy(() => receiveTypes(transport))
        seen.push(error instanceof SystemError ? error.code : 'datagram')
        if (seen.length < 2) return
        stop()
        resolve()
      })
    })
    expect(seen).toEqual(['ENOBUFS', 'datagram'])
  })

  it('makes an exception of the watcher an uncaught one', async () => {
    const printed = inChild(`
      const handle = open()
      process.on('uncaughtException', error => { console.log(error.message); addon.close(handle) })
      addon.watch(handle, () => { throw new Error('from the watcher') })
      addon.sendSync(handle, dump)`)
    expect(await printed).toBe('from the watcher')
  })

  it('keeps a socket alive that nobody else holds', async () => {
    const printed = inChild(
      `
      function start() {
        const handle = open()
        let calls = 0
        addon.watch(handle, function () {
          addon.receive(this, Buffer.alloc(65536), 65536)
          if (++calls === 2) { addon.close(this); console.log('called twice') }
        })
        addon.sendSync(handle, dump)
      }
      start()
      setImmediate(gc)`,
      '--expose-gc',
    )
    expect(await printed).toBe('called twice')
  })
})

describe('close', () => {
  it('may be repeated, and refuses whatever comes after', async () => {
    const transport = openRoute()
    const stop = transport.watch(() => undefined)
    await transport.close()
    await transport.close()
    stop()
    expect(thrownBy(() => transport.sendSync(getLink()))).toMatchObject(EBADF)
    expect(thrownBy(() => transport.receive(buffer()))).toMatchObject(EBADF)
    expect(thrownBy(() => transport.watch(() => undefined))).toMatchObject(EBADF)
    expect(thrownBy(() => transport.join(1))).toMatchObject(EBADF)
    await expect(transport.send(getLink())).rejects.toMatchObject(EBADF)
  })

  it('waits for sends in flight', async () => {
    const transport = openRoute()
    const order: string[] = []
    const sends = [1, 2, 3].map(() => transport.send(getLink()).then(() => order.push('sent')))
    const closed = transport.close().then(() => order.push('closed'))
    await expect(transport.send(getLink())).rejects.toMatchObject(EBADF)
    await Promise.all([...sends, closed])
    expect(order).toEqual(['sent', 'sent', 'sent', 'closed'])
  })

  it('frees the descriptor at once, or after the last send in flight', async () => {
    const printed = inChild(`
      const before = sockets()
      const [idle, busy] = [open(), open()]
      addon.watch(idle, () => {})
      addon.close(idle)
      const sends = [addon.send(busy, dump), addon.send(busy, dump)]
      addon.close(busy)
      console.log(sockets() - before)
      Promise.all(sends).then(results => console.log(...results, sockets() - before))`)
    expect(await printed).toBe('1\n0 0 0')
  })

  it('happens by itself when nobody holds the socket any more', async () => {
    const printed = inChild(
      `
      const before = sockets()
      function leak() { for (let i = 0; i < 50; i++) { const h = open(); addon.watch(h, () => {}); addon.unwatch(h) } }
      leak()
      addon.send(open(), dump)
      console.log(sockets() - before)
      void (async () => {
        for (let i = 0; i < 50 && sockets() > before; i++) { gc(); await later(5) }
        console.log(sockets() - before)
      })()`,
      '--expose-gc',
    )
    expect(await printed).toBe('51\n0')
  })
})

describe('a worker thread that ends with a socket', () => {
  const watching = 'const h = open(); addon.watch(h, () => {}); addon.watch(open(), () => {})'
  const sending = 'const h = open(); for (let i = 0; i < 20; i++) addon.send(h, dump)'
  const bodies = {
    watches: watching,
    sends: sending,
    'repeats a request': `${watching}; addon.repeat(h, dump, 1)`,
    closes: `${watching}; addon.send(h, dump); addon.close(h)`,
  }
  const ways = {
    'by process.exit': 'process.exit()',
    'by terminate':
      "require('node:worker_threads').parentPort.postMessage('end me'); setInterval(() => {}, 1000)",
    'by an exception': "throw new Error('the end')",
  }
  describe.each(Object.entries(ways))('%s', (_, end) => {
    it.each(Object.entries(bodies))('leaves nothing behind when it %s', async (_does, body) => {
      expect(await inWorker(body, end)).toBe('left 0')
    })
  })

  it('leaves nothing behind when it watches and ends inside the watcher', async () => {
    const body = 'const h = open(); addon.watch(h, () => process.exit()); addon.sendSync(h, dump)'
    expect(await inWorker(body, '')).toBe('left 0')
  })

  it('does not keep the main thread from ending either', async () => {
    expect(await inChild(`addon.watch(open(), () => {}); addon.send(open(), dump); process.exit()`)).toBe('')
  })
})

describe('the addon', () => {
  const raw: Record<string, (...args: unknown[]) => unknown> = createRequire(import.meta.url)(addon)

  it('throws a TypeError at arguments of a wrong type', () => {
    const call = (name: string, ...args: unknown[]) => raw[name]?.(...args)
    const handle = call('open', NETLINK_ROUTE, 65536, 65536)
    const wrong: [string, ...unknown[]][] = [
      ['open'],
      ['open', '0', 1, 1],
      ['open', 0, {}, 1],
      ['setMember', handle, '1', 1],
      ['sendSync', handle],
      ['sendSync', handle, 'text'],
      ['sendSync', handle, new Uint16Array(8)],
      ['sendSync', handle, new DataView(new ArrayBuffer(32))],
      ['sendSync', handle, new ArrayBuffer(32)],
      ['send', handle, null],
      ['receive', handle, []],
      ['watch', handle, {}],
      ['repeat', handle, buffer(), '1'],
    ]
    for (const method of 'setMember sendSync send receive watch repeat unwatch close'.split(' ')) {
      for (const other of [undefined, null, 1, 'socket', {}, new Date(), Object.create(Object(handle))]) {
        wrong.push([method, other, buffer(), buffer()])
      }
    }
    for (const [method, ...args] of wrong) {
      expect(() => call(method, ...args), `${method}(${args.map(String)})`).toThrow(TypeError)
    }
    call('close', handle)
  })

  it('that cannot be loaded or is of another age is refused with what to do', () => {
    const stale = join(scratch, 'stale.cjs')
    writeFileSync(stale, 'exports.abi = 0')
    expect(() => openNetlink({ protocol: NETLINK_ROUTE, addon: join(scratch, 'none.node') })).toThrow(
      /cannot load kprobe's addon: .*none\.node.*npm run build:native/s,
    )
    expect(() => openNetlink({ protocol: NETLINK_ROUTE, addon: stale })).toThrow(
      `${stale} was built from other sources than this program: rebuild it with npm run build:native`,
    )
  })

  it('is found beside the bundle first and in the build folder next', async () => {
    const bundle = join(scratch, 'dist/bundle.mjs')
    const entry = 'src/netlink/native.ts'
    await build({ entryPoints: [entry], outfile: bundle, bundle: true, format: 'esm', platform: 'node' })
    const found = `import { findAddon } from ${JSON.stringify(bundle)}; console.log(findAddon())`
    const find = () => promisify(execFile)(process.execPath, ['--input-type=module', '-e', found])
    await expect(find()).rejects.toThrow(/addon is not built \(neither .*: npm run build:native/)
    const built = join(scratch, 'build/Release/kprobe.node')
    mkdirSync(join(scratch, 'build/Release'), { recursive: true })
    copyFileSync(addon, built)
    expect((await find()).stdout.trim()).toBe(built)
    copyFileSync(addon, join(scratch, 'dist/kprobe.node'))
    expect((await find()).stdout.trim()).toBe(join(scratch, 'dist/kprobe.node'))
  })
})
