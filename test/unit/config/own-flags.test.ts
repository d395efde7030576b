import { describe, expect, it } from 'vitest'
import { defaultApiAddress } from '../../../src/config/own-flags.ts'
import { parseFlags } from '../../support/parse-flags.ts'

const TLS = ['--api-tls-cert=c', '--api-tls-key=k', '--api-tls-client-ca=a']

function parse(...argv: string[]) {
  const parsed = parseFlags(argv, { hostName: 'here' })
  return parsed.kind === 'ok'
    ? parsed.value.config.api
    : parsed.errors.map(({ path, message }) => `${path}: ${message}`)
}

describe('--api of kprobe run', () => {
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
