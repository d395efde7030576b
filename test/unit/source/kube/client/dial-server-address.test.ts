import { describe, expect, it } from 'vitest'
import { type Ip, parseIp } from '../../../../../src/base/ip.ts'
import {
  dependsOnServices,
  isLoopbackHost,
  parseProxy,
  parseServer,
  proxyFromEnvironment,
} from '../../../../../src/source/kube/client/server-address.ts'

describe('a server', () => {
  it.each([
    ['https://192.0.2.1:6443', { secure: true, host: '192.0.2.1', port: 6443, authority: '192.0.2.1:6443' }],
    ['https://api.test', { port: 443, authority: 'api.test', url: 'https://api.test', basePath: '' }],
    ['https://[2001:db8::1]:6443/', { host: '2001:db8::1', authority: '[2001:db8::1]:6443', basePath: '' }],
    ['https://r.test/k8s/clusters/c-1/', { basePath: '/k8s/clusters/c-1' }],
    ['http://127.0.0.1:8001', { secure: false, port: 8001 }],
    ['192.0.2.1:6443', { secure: false, url: 'http://192.0.2.1:6443' }],
  ])('%s is understood', (text, expected) => {
    expect(parseServer(text, 'it', false)).toMatchObject(expected)
  })

  it('is reached by https without a scheme where there are certificates', () => {
    expect(parseServer('192.0.2.1:6443', 'it', true).url).toBe('https://192.0.2.1:6443')
  })

  it.each([
    ['', 'it is not a URL'],
    ['https://', 'it is not a URL'],
    ['ftp://a.test', 'it has the scheme ftp:'],
    ['https://me:secret@a.test', 'it holds a user name or password'],
    ['https://a.test?x=secret', 'it holds a query'],
  ])('%j is refused without repeating it', (text, words) => {
    expect(() => parseServer(text, 'it', true)).toThrow(words)
    expect(() => parseServer(text, 'it', true)).not.toThrow(/secret/)
  })
})

describe('F97: the address of the API server', () => {
  const ips = ['10.96.0.1', '2001:db8::1']
    .map(text => parseIp(text))
    .filter((ip): ip is Ip => ip !== undefined)

  it.each([
    ['10.96.0.1', true],
    ['2001:DB8:0::1', true],
    ['[2001:db8::1]', true],
    ['10.96.0.2', false],
    ['kubernetes.default.svc', false],
  ])('%s among the ClusterIPs: %s', (host, expected) => {
    expect(dependsOnServices(host, ips)).toBe(expected)
  })
})

describe('loopback', () => {
  it.each([
    ['127.0.0.1', true],
    ['127.9.9.9', true],
    ['::1', true],
    ['localhost', true],
    ['192.0.2.1', false],
    ['localhost.example.test', false],
  ])('%s: %s', (host, expected) => {
    expect(isLoopbackHost(host)).toBe(expected)
  })
})

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
