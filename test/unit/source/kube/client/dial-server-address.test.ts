import { describe, expect, it } from 'vitest'
import { type Ip, parseIp } from '../../../../../src/base/ip.ts'
import {
  dependsOnServices,
  isLoopbackHost,
  parseServer,
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
