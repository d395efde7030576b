import { describe, expect, it } from 'vitest'
import {
  parseProxy,
  parseServer,
  proxyFromEnvironment,
} from '../../../../../src/source/kube/client/server-address.ts'

const SERVER = 'https://192.0.2.1:6443'

function chosen(env: Readonly<Record<string, string>>, server = SERVER): string | undefined {
  const proxy = proxyFromEnvironment(env, parseServer(server, 'it', true))
  return proxy === undefined ? undefined : `${proxy.host}:${proxy.port}`
}

describe('a proxy', () => {
  it('has a password of its own', () => {
    expect(parseProxy('http://me:p%40ss@[2001:db8::1]', 'it')).toEqual({
      host: '2001:db8::1',
      port: 80,
      headers: { 'proxy-authorization': `Basic ${btoa('me:p@ss')}` },
    })
  })

  it('with a password that is not escaped is refused', () => {
    expect(() => parseProxy('http://me:100%@p.test', 'proxy-url')).toThrow(
      /^proxy-url holds a user name or password with a bad % escape; write % as %25$/,
    )
  })

  it('of the environment is chosen by the scheme, in either case', () => {
    expect(chosen({ HTTPS_PROXY: 'http://p.test:3128' })).toBe('p.test:3128')
    expect(chosen({ https_proxy: 'p.test:3128' })).toBe('p.test:3128')
    expect(chosen({ HTTP_PROXY: 'http://p.test:3128' })).toBeUndefined()
    expect(chosen({ HTTP_PROXY: 'http://p.test:3128' }, 'http://192.0.2.1')).toBe('p.test:3128')
    expect(chosen({})).toBeUndefined()
  })

  it('is never used for this machine', () => {
    for (const server of ['https://127.0.0.1', 'https://[::1]', 'https://localhost'])
      expect(chosen({ HTTPS_PROXY: 'http://p.test' }, server)).toBeUndefined()
  })

  it.each([
    ['*', SERVER],
    ['a.test, 192.0.2.0/24', SERVER],
    ['192.0.2.1', SERVER],
    ['192.0.2.1:6443', SERVER],
    ['[2001:db8::1]:6443', 'https://[2001:db8::1]:6443'],
    ['2001:db8::1', 'https://[2001:db8::1]:6443'],
    ['API.test', 'https://api.test'],
    ['test', 'https://api.test'],
    ['.test', 'https://api.test'],
    ['*.test', 'https://api.test'],
  ])('NO_PROXY=%s leaves out %s', (exceptions, server) => {
    expect(chosen({ HTTPS_PROXY: 'http://p.test', NO_PROXY: exceptions }, server)).toBeUndefined()
  })

  it.each([
    ['', SERVER],
    ['192.0.2.1:443', SERVER],
    ['192.0.2.10', SERVER],
    ['198.51.100.0/24', SERVER],
    ['.api.test', 'https://api.test'],
    ['pi.test', 'https://api.test'],
  ])('NO_PROXY=%s does not leave out %s', (exceptions, server) => {
    expect(chosen({ HTTPS_PROXY: 'http://p.test', no_proxy: exceptions }, server)).toBe('p.test:80')
  })

  it('of another kind is refused by the name of its variable', () => {
    expect(() => chosen({ HTTPS_PROXY: 'socks5://me:secret@p.test' })).toThrow(
      /^HTTPS_PROXY has the scheme socks5: where only plain http proxies \(CONNECT\) are known$/,
    )
  })
})
