import { readdir } from 'node:fs/promises'
import { constants } from 'node:http2'
import type { LookupFunction } from 'node:net'
import { describe, expect, it } from 'vitest'
import type { ClientOptions } from '../../../../../src/source/kube/client/http-client.ts'
import { FakeClock } from '../../../../support/fake-clock.ts'
import { eventually } from '../../../../support/patience.ts'
import { createAuthority } from '../../../../support/tls.ts'
import { goaway, NO_SETTINGS } from './frames.ts'
import {
  CANARY,
  clusterOf,
  failureBeyondLoss,
  failureOf,
  get,
  getText,
  type Handler,
  loopback,
  pause,
  until,
} from './loopback.ts'

const rig = loopback()
const ok: Handler = (_, response) => response.end('ok')

async function failed(cluster: object, user?: object, env = {}) {
  const client = await rig().open({ kubeconfig: await rig().kubeconfig(cluster, user), env })
  const error = await failureOf(getText(client, '/api'))
  for (const text of [error.message, String(error.cause), ...rig().warnings])
    expect(text).not.toContain(CANARY)
  return error
}

describe('F15 A32: a server', () => {
  it('with a certificate of another authority is refused', async () => {
    const server = await rig().serve({ protocol: 'h2', handler: ok })
    const error = await failed(clusterOf({ ...server, caPem: createAuthority().caPem }))
    expect(error).toMatchObject({ kind: 'tls' })
    expect(error.message).toMatch(
      /^GET \/api at https:\/\/127.0.0.1:\d+: the server's certificate is refused: /,
    )
  })

  it('with a certificate for other names is refused', async () => {
    const authority = createAuthority()
    const pair = authority.issue({ names: ['other.test'] })
    const server = await rig().serve({ protocol: 'h2', handler: ok, authority, pair })
    expect(await failed(clusterOf(server))).toMatchObject({ kind: 'tls' })
    const cluster = { ...clusterOf(server), 'tls-server-name': 'other.test' }
    const client = await rig().open({ kubeconfig: await rig().kubeconfig(cluster) })
    expect(await getText(client, '/')).toBe('ok')
  })

  it('with a certificate that has expired or is not valid yet is refused', async () => {
    const authority = createAuthority()
    for (const span of [{ untilSeconds: -60 }, { fromSeconds: 60 }]) {
      const server = await rig().serve({
        protocol: 'h2',
        handler: ok,
        authority,
        pair: authority.issue(span),
      })
      expect(await failed(clusterOf(server))).toMatchObject({ kind: 'tls' })
    }
  })

  it('is verified whatever the environment says', async () => {
    const server = await rig().serve({ protocol: 'h2', handler: ok })
    const cluster = clusterOf({ ...server, caPem: createAuthority().caPem })
    const before = process.env.NODE_TLS_REJECT_UNAUTHORIZED
    process.env.NODE_TLS_REJECT_UNAUTHORIZED = '0'
    try {
      expect(await failed(cluster, undefined, process.env)).toMatchObject({ kind: 'tls' })
    } finally {
      if (before === undefined) delete process.env.NODE_TLS_REJECT_UNAUTHORIZED
      else process.env.NODE_TLS_REJECT_UNAUTHORIZED = before
    }
  })

  it('F117: NODE_TLS_REJECT_UNAUTHORIZED=0 is reported', async () => {
    await rig().open({ master: 'http://127.0.0.1:1', env: { NODE_TLS_REJECT_UNAUTHORIZED: '0' } })
    expect(rig().warnings).toEqual([
      'NODE_TLS_REJECT_UNAUTHORIZED=0 is ignored: kprobe verifies the API server',
    ])
  })

  it('is believed unseen only where the kubeconfig says so, with a warning', async () => {
    const server = await rig().serve({ protocol: 'h2', handler: ok })
    const cluster = { server: server.url, 'insecure-skip-tls-verify': true }
    const client = await rig().open({ kubeconfig: await rig().kubeconfig(cluster) })
    expect(await getText(client, '/')).toBe('ok')
    expect(rig().warnings[0]).toContain('insecure-skip-tls-verify is set: any server can impersonate')
  })

  it('without TLS is distinguished from an absent one', async () => {
    const plain = await rig().serve({ protocol: 'plain', handler: ok })
    expect(await failed({ server: plain.url.replace('http:', 'https:') })).toMatchObject({ kind: 'tls' })
    await plain.close()
    const error = await failed({ server: plain.url })
    expect(error).toMatchObject({ kind: 'unreachable' })
    expect(error.message).toContain('cannot connect: ECONNREFUSED')
  })

  it('is not shown a token over plain HTTP without a warning, unless it is on this machine', async () => {
    await rig().open({ kubeconfig: await rig().kubeconfig({ server: 'http://127.0.0.1:8001' }) })
    expect(rig().warnings).toEqual([])
    await rig().open({ kubeconfig: await rig().kubeconfig({ server: 'http://192.0.2.1:8001' }) })
    expect(rig().warnings[0]).toContain('credentials are sent in clear to http://192.0.2.1:8001')
    expect(rig().warnings.join()).not.toContain(CANARY)
  })
})

describe('a client certificate', () => {
  it('is shown, and a new one means a new connection', async () => {
    const authority = createAuthority()
    const names: string[] = []
    const server = await rig().serve({
      protocol: 'http/1.1',
      handler: (request, response) => {
        if ('getPeerCertificate' in request.socket && typeof request.socket.getPeerCertificate === 'function')
          names.push(request.socket.getPeerCertificate().subject.CN)
        response.end('ok')
      },
      authority,
      clientCa: authority.caPem,
    })
    const write = async (commonName: string): Promise<object> => {
      const pair = authority.issue({ commonName })
      return {
        'client-certificate': await rig().file('c.pem', pair.certPem),
        'client-key': await rig().file('k.pem', pair.keyPem),
      }
    }
    const clock = new FakeClock()
    const user = await write('alice')
    const client = await rig().open({ clock, kubeconfig: await rig().kubeconfig(clusterOf(server), user) })
    await getText(client, '/')
    await write('bob')
    await clock.advance(60_000)
    await getText(client, '/')
    expect(names).toEqual(['alice', 'bob'])
    await until(() => server.connections.size === 1, 'the end of the first connection')
  })

  it('that cannot be used is named', async () => {
    const { certPem } = createAuthority().issue()
    const { keyPem } = createAuthority().issue()
    const user = {
      'client-certificate-data': btoa(certPem),
      'client-key-data': btoa(keyPem),
    }
    const error = await failed({ server: 'https://127.0.0.1:1' }, user)
    expect(error).toMatchObject({ kind: 'unreachable' })
    const server = await rig().serve({ protocol: 'h2', handler: ok })
    const second = await failed(clusterOf(server), user)
    expect(second).toMatchObject({ kind: 'credentials' })
    expect(second.message).toContain('user "me": unusable certificate or key')
    expect(second.message).not.toContain('PRIVATE')
  })
})

describe('a connection', () => {
  it('F96: is made to the address that the name has at that moment', async () => {
    const authority = createAuthority()
    const pair = authority.issue({ names: ['api.test'] })
    const first = await rig().serve({ protocol: 'h2', handler: (_, r) => r.end('one'), authority, pair })
    const second = await rig().serve({
      protocol: 'h2',
      handler: (_, r) => r.end('two'),
      authority,
      pair,
      host: '127.0.0.2',
      port: first.port,
    })
    const names = new Map([['api.test', '127.0.0.1']])
    const lookup: LookupFunction = (name, options, done) => {
      const address = names.get(name)
      if (address === undefined) done(Object.assign(new Error('no'), { code: 'ENOTFOUND' }), '', 0)
      else if (options.all === true) done(null, [{ address, family: 4 }])
      else done(null, address, 4)
    }
    const cluster = clusterOf({ ...first, url: `https://api.test:${first.port}` })
    const client = await rig().open({ kubeconfig: await rig().kubeconfig(cluster), connect: { lookup } })
    expect(await getText(client, '/')).toBe('one')
    await first.close()
    names.delete('api.test')
    const error = await failureBeyondLoss(client)
    expect(error).toMatchObject({ kind: 'unreachable' })
    expect(error.message).toContain('its host name has no address: ENOTFOUND')
    names.set('api.test', '127.0.0.2')
    expect(await getText(client, '/')).toBe('two')
    expect(second.accepted).toBe(1)
  })

  it('begins at the next address of the name once one has not ended its handshakes', async () => {
    const authority = createAuthority()
    const pair = authority.issue({ names: ['api.test'] })
    const second = await rig().serve({ protocol: 'h2', handler: ok, authority, pair, host: '127.0.0.2' })
    let accepted = 0
    await rig().listen(() => accepted++, { port: second.port })
    const lookup: LookupFunction = (_name, _options, done) =>
      done(
        null,
        ['127.0.0.1', '127.0.0.2'].map(address => ({ address, family: 4 })),
      )
    const clock = new FakeClock()
    const kubeconfig = await rig().kubeconfig(
      clusterOf({ ...second, url: `https://api.test:${second.port}` }),
    )
    const client = await rig().open({ kubeconfig, clock, connect: { lookup } })
    const failure = failureOf(getText(client, '/'))
    await until(() => accepted === 1)
    await clock.advance(10_000)
    expect(await failure).toMatchObject({ kind: 'unreachable' })
    expect(await getText(client, '/')).toBe('ok')
  })

  it('is given 10 s, by whatever is slow, and one attempt serves all who wait', async () => {
    let accepted = 0
    const { port } = await rig().listen(() => {
      accepted++
    })
    const clock = new FakeClock()
    const cluster = { server: `https://127.0.0.1:${port}` }
    const client = await rig().open({ clock, kubeconfig: await rig().kubeconfig(cluster) })
    const failures = ['/1', '/2', '/3'].map(path => failureOf(client.send(get(path))))
    await until(() => accepted === 1)
    await pause(20)
    await clock.advance(10_000)
    for (const failure of failures) {
      expect(await failure).toMatchObject({ kind: 'unreachable' })
      expect((await failure).message).toContain('no connection within 10 s')
    }
    expect(accepted).toBe(1)
  })

  /** Begins once so many bytes have arrived. */
  async function openingAt(port: number, bytes = 0) {
    const { openHttp2 } = await import('../../../../../src/source/kube/client/http2-connection.ts')
    const { connect } = await import('node:net')
    const socket = connect(port, '127.0.0.1')
    if (bytes > 0) socket.once('readable', () => undefined)
    await until(() => socket.readableLength >= bytes)
    const controller = new AbortController()
    const { signal } = controller
    const opening = openHttp2({ socket, authority: 'a', clock: new FakeClock(), signal })
    return { socket, controller, failure: failureOf(opening) }
  }

  it('that speaks HTTP/2 without SETTINGS is given 10 s, too', async () => {
    const { port } = await rig().listen(socket => socket.on('error', () => undefined))
    const { socket, controller, failure } = await openingAt(port)
    controller.abort(new Error('too late'))
    expect((await failure).message).toBe('too late')
    await until(() => socket.closed)
  })

  it('that ends before the SETTINGS of HTTP/2, without an error, is lost', async () => {
    const { port } = await rig().listen(socket => socket.once('data', () => socket.end()))
    const { failure } = await openingAt(port)
    expect(await failure).toMatchObject({ kind: 'lost' })
  })

  it('that gets GOAWAY in one piece with the SETTINGS of HTTP/2 is lost', async () => {
    const both = Buffer.concat([NO_SETTINGS, goaway(0, constants.NGHTTP2_ENHANCE_YOUR_CALM)])
    const { port } = await rig().listen(socket => socket.on('error', () => undefined).write(both))
    const { socket, failure } = await openingAt(port, both.length)
    expect(await failure).toMatchObject({ kind: 'lost' })
    await until(() => socket.closed)
  })

  /** Options of a client whose attempts to connect are heard of. */
  function heardBy(heard: {
    readonly connected?: () => Promise<void>
    readonly failed?: () => Promise<void>
  }): Partial<ClientOptions> {
    const nothing = async () => undefined
    const attempt = { localPort: undefined, connected: nothing, failed: nothing, ...heard }
    return { dials: { reaching: () => undefined, dialling: async () => attempt } }
  }

  it('that allows no stream is closed, and counts as failed alone', async () => {
    const server = await rig().serve({ protocol: 'h2', maxConcurrentStreams: 0, handler: ok })
    const heard: string[] = []
    const attempts = heardBy({
      connected: async () => void heard.push('connected'),
      failed: async () => void heard.push('failed'),
    })
    const client = await rig().openTo(server, attempts)
    expect(await failureOf(getText(client, '/'))).toMatchObject({ kind: 'lost' })
    expect(server.accepted).toBe(1)
    await until(() => server.connections.size === 0, 'the end of the connection')
    expect(heard).toEqual(['failed'])
  })

  it.each(['h2', 'http/1.1'] as const)(
    'sends nothing of a request that was given up (%s)',
    async protocol => {
      const asked: string[] = []
      const noting: Handler = (request, response) => {
        asked.push(request.url ?? '')
        response.end('ok')
      }
      const controller = new AbortController()
      const attempts = heardBy({ connected: async () => controller.abort() })
      const { client, server } = await rig().opened(protocol, noting, attempts)
      const { signal } = controller
      expect(await failureOf(client.send(get('/given-up', { signal })))).toMatchObject({ kind: 'aborted' })
      expect(await getText(client, '/next')).toBe('ok')
      expect(asked).toEqual(['/next'])
      if (protocol === 'http/1.1')
        await until(() => server.connections.size === 0, 'the end of the connections')
    },
  )

  it.each(['h2', 'http/1.1'] as const)('that is reset before it is used is lost (%s)', async protocol => {
    const connected = async () => {
      await pause(20)
      for (const socket of server.connections) socket.resetAndDestroy()
      await pause(20)
    }
    const { client, server } = await rig().opened(protocol, ok, heardBy({ connected }))
    expect(await failureOf(getText(client, '/'))).toMatchObject({ kind: 'lost' })
  })

  it('F91: 1,000 of them leave no descriptor behind', async () => {
    const server = await rig().serve({
      protocol: 'plain',
      handler: (_, r) => r.setHeader('connection', 'close').end('x'),
    })
    const client = await rig().open({ master: server.url })
    await getText(client, '/')
    const before = await descriptors()
    for (let round = 0; round < 1000; round++) await getText(client, '/')
    expect(server.accepted).toBe(1001)
    await expectFewer(before + 60)
  })
})

async function descriptors(): Promise<number> {
  return (await readdir('/proc/self/fd')).length
}

/** Tests of other files open and close some in the same process meanwhile. */
async function expectFewer(limit: number): Promise<void> {
  await eventually(async () => (await descriptors()) < limit, `fewer than ${limit} descriptors`)
}

describe('a proxy', () => {
  it('is asked for a tunnel, with its own password', async () => {
    const server = await rig().serve({ protocol: 'h2', handler: ok })
    const asked: string[] = []
    const { connect } = await import('node:net')
    const proxy = await rig().listen(near => {
      near.once('data', head => {
        asked.push(head.toString())
        const far = connect(server.port, '127.0.0.1', () => {
          near.write('HTTP/1.1 200 Connection established\r\n\r\n')
          near.pipe(far).pipe(near)
        })
        near.on('error', () => far.destroy())
        far.on('error', () => near.destroy())
      })
    })
    const cluster = { ...clusterOf(server), 'proxy-url': `http://me:${CANARY}@127.0.0.1:${proxy.port}` }
    const client = await rig().open({ kubeconfig: await rig().kubeconfig(cluster) })
    expect(await getText(client, '/')).toBe('ok')
    expect(asked[0]).toContain(`CONNECT 127.0.0.1:${server.port} HTTP/1.1`)
    expect(asked[0]).toContain(`proxy-authorization: Basic ${btoa(`me:${CANARY}`)}`)
  })

  it('that refuses is named, and its password is not', async () => {
    const proxy = await rig().listen(socket => {
      socket.on('error', () => undefined)
      socket.once('data', () => socket.end('HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n'))
    })
    const url = `http://me:${CANARY}@127.0.0.1:${proxy.port}`
    const error = await failed({ server: 'https://192.0.2.1', 'proxy-url': url })
    expect(error).toMatchObject({ kind: 'unreachable' })
    expect(error.message).toContain(
      `cannot connect through the proxy 127.0.0.1:${proxy.port}: it answers 403 to CONNECT`,
    )
  })

  it.each(['socks5://p.test', 'https://p.test', CANARY])(
    '%s is refused when the client is opened',
    async url => {
      const kubeconfig = await rig().kubeconfig({ server: 'https://a.test', 'proxy-url': url })
      const error = await failureOf(rig().open({ kubeconfig }))
      expect(error.message).toMatch(/proxy-url (has the scheme|is not a URL)/)
      expect(error.message).not.toContain(CANARY)
    },
  )
})
