import { describe, expect, it } from 'vitest'
import { parseIp } from '../../../src/base/ip.ts'
import type { Config } from '../../../src/config/config.ts'
import { defaultApiAddress } from '../../../src/config/own-flags.ts'
import { configFrom, errorsFrom } from '../../support/parse-flags.ts'

const TLS = ['--api-tls-cert=c', '--api-tls-key=k', '--api-tls-client-ca=a']

/** What of the configuration these flags make, or the errors. */
function read<T>(argv: readonly string[], part: (config: Config) => T) {
  const errors = errorsFrom(argv)
  return errors.length > 0 ? errors : part(configFrom(argv))
}

describe('--api of kprobe run', () => {
  const parse = (...argv: readonly string[]) => read(argv, ({ api }) => api)

  it('is an address, and three files or none', () => {
    expect(parse()).toBeUndefined()
    expect(parse('--api=unix:///x/y')).toEqual({ address: 'unix:///x/y', tls: undefined })
    expect(parse('--api=tcp://127.0.0.1:1', ...TLS)).toEqual({
      address: 'tcp://127.0.0.1:1',
      tls: { certFile: 'c', keyFile: 'k', clientCaFile: 'a' },
    })
    expect(parse('--api=tcp://127.0.0.1:1', ...TLS.slice(0, 1))).toEqual([
      '--api-tls-key: is missing: TLS needs certificate, key and client CA',
      '--api-tls-client-ca: is missing: TLS needs certificate, key and client CA',
    ])
  })

  it('is refused where no client could connect, and its files without it', () => {
    expect(parse('--api=unix:///x/y', '--once')).toEqual([expect.stringMatching(/^--api: .*--once/)])
    expect(parse('--api=unix:///x/y', '--once=false')).toMatchObject({ address: 'unix:///x/y' })
    expect(parse(...TLS)).toEqual(
      ['cert', 'key', 'client-ca'].map(name => expect.stringMatching(`^--api-tls-${name}: .*--api`)),
    )
  })
})

it('each proxy of a node has a place of its own for its API', () => {
  expect(defaultApiAddress(undefined)).toBe('unix:///run/kprobe/api.sock')
  expect(defaultApiAddress('red')).toBe('unix:///run/kprobe/api-red.sock')
})

it('each has an admin socket of its own, unless a flag names another or none', () => {
  const parse = (...argv: readonly string[]) => read(argv, ({ adminSocket }) => adminSocket)
  expect(parse()).toBe('/run/kprobe/admin.sock')
  expect(parse('--service-proxy-name=red')).toBe('/run/kprobe/admin-red.sock')
  expect(parse('--admin-socket=/x')).toBe('/x')
  expect(parse('--admin-socket=')).toBe('')
})

describe('--ui-address', () => {
  const parse = (...argv: readonly string[]) => read(argv, ({ ui }) => ui)
  const TLS_FILES = ['--ui-tls-cert=c', '--ui-tls-key=k', '--ui-tls-client-ca=a']
  const at = (address: string, port: number) => ({ at: { ip: parseIp(address), port } })

  it('is a port on loopback, or an address', () => {
    expect(parse()).toBeUndefined()
    expect(parse('--ui-address=8080')).toEqual({ ...at('127.0.0.1', 8080), tokenFile: '', tls: undefined })
    expect(parse('--ui-address=[::1]:8080')).toMatchObject(at('::1', 8080))
    for (const wrong of ['localhost:8080', '0', '70000', '127.0.0.1', ':8080', '::1:8080'])
      expect(parse(`--ui-address=${wrong}`)).toEqual([expect.stringMatching(/^--ui-address: .*PORT/)])
  })

  it('F187: demands a token or client certificates where other machines reach it', () => {
    for (const open of ['0.0.0.0:8080', '[::]:8080', '192.0.2.1:8080'])
      expect(parse(`--ui-address=${open}`)).toEqual([
        expect.stringMatching(/^--ui-address: other machines reach .*--ui-token-file, or --ui-tls-cert/),
      ])
    expect(parse('--ui-address=0.0.0.0:8080', '--ui-token-file=t')).toMatchObject({
      tokenFile: 't',
      tls: undefined,
    })
    expect(parse('--ui-address=0.0.0.0:8080', ...TLS_FILES)).toMatchObject({
      tls: { certFile: 'c', keyFile: 'k', clientCaFile: 'a' },
    })
    expect(parse('--ui-address=0.0.0.0:8080', ...TLS_FILES.slice(0, 2))).toContain(
      '--ui-tls-client-ca: is missing: TLS needs certificate, key and client CA',
    )
  })

  it('is refused where nobody could look, and its files without it', () => {
    expect(parse('--ui-address=8080', '--once')).toEqual([expect.stringMatching(/^--ui-address: .*--once/)])
    expect(parse('--ui-token-file=t', ...TLS_FILES)).toEqual(
      ['token-file', 'tls-cert', 'tls-key', 'tls-client-ca'].map(name =>
        expect.stringMatching(`^--ui-${name}: needs`),
      ),
    )
  })
})

describe('--source=relay', () => {
  const FAR = '--source=relay:tcp://10.0.0.5:1@zone-a'
  const relayOf = (...argv: readonly string[]) =>
    read(argv, ({ source }) => (source.kind === 'kube' ? source.relay : undefined))

  it('takes a certificate or a token, and a zone', () => {
    const tls = { caFile: 'ca', serverName: '', certFile: 'c', keyFile: 'k' }
    const own = ['--relay-tls-ca=ca', '--relay-tls-cert=c', '--relay-tls-key=k']
    expect(relayOf(FAR, ...own)).toMatchObject({ zone: '', tls, tokenFile: '' })
    const token = [
      '--relay-tls-ca=ca',
      '--relay-tls-server-name=n',
      '--relay-token-file=t',
      '--relay-zone=zone-a',
    ]
    expect(relayOf(FAR, ...token)).toEqual({
      addresses: ['tcp://10.0.0.5:1@zone-a'],
      zone: 'zone-a',
      fallsBack: false,
      tls: { caFile: 'ca', serverName: 'n', certFile: '', keyFile: '' },
      tokenFile: 't',
    })
    // At this machine nobody else can listen.
    expect(relayOf('--source=relay:unix:///r', '--relay-token-file=t')).toMatchObject({
      tls: undefined,
      tokenFile: 't',
    })
    // Older clusters give pods no zone.
    expect(relayOf('--source=relay:unix:///r', '--relay-zone=')).toMatchObject({ zone: '' })
  })

  it.each([
    [[FAR, '--relay-token-file=t'], '--source: tcp://10.0.0.5:1@zone-a needs TLS'],
    [[FAR, '--relay-tls-ca=ca'], '--relay-tls-cert: is missing'],
    [[FAR, '--relay-tls-ca=ca', '--relay-tls-cert=c'], '--relay-tls-key: is missing'],
    [[FAR, '--relay-tls-ca=ca', '--relay-tls-key=k', '--relay-token-file=t'], '--relay-tls-cert: is missing'],
    [[FAR, '--relay-tls-server-name=n', '--relay-token-file=t'], '--relay-tls-ca: is missing'],
    [['--source=relay:unix:///r', '--relay-zone=a b'], '--relay-zone: "a b" is not a label value'],
    [['--source=relay:tcp://127.0.0.1:1@'], '--source: relay: "tcp://127.0.0.1:1@": "" is not a zone'],
    [['--relay-token-file=t'], '--relay-token-file: needs --source=relay:ADDRESS'],
    [['--relay-zone=a'], '--relay-zone: needs --source=relay:ADDRESS'],
  ])('refuses %j', (argv, message) => {
    expect(relayOf(...argv)).toEqual([expect.stringContaining(message)])
  })
})
