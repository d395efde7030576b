import { describe, expect, it } from 'vitest'
import {
  collectNames,
  collectNamesInText,
  redacted,
  redactionOf,
} from '../../../../src/inspect/bundle/redaction.ts'
import { KUBE_CHAINS, portChains } from '../../../../src/modes/xt-common/layout.ts'

const KEY = Buffer.from('a key for tests')

function of(...names: readonly string[]) {
  return redactionOf({ names: new Set(names), key: KEY })
}

describe('a redaction', () => {
  it('gives one name one pseudonym of its length, another for another key', () => {
    const { text } = of('shop', 'checkout', 'node-1.example.org')
    const renamed = text('shop/checkout on node-1.example.org, shop')
    expect(renamed).toMatch(/^[a-z][a-z0-9]{3}\/[a-z][a-z0-9]{7} on [a-z0-9]{6}\.[a-z0-9]{7}\.[a-z0-9]{3}, /)
    expect(renamed.endsWith(`, ${renamed.slice(0, 4)}`)).toBe(true)
    const other = redactionOf({ names: new Set(['shop']), key: Buffer.from('another') })
    expect(other.text('shop')).not.toBe(text('shop'))
  })

  it('finds the longest name, and names between dots and hyphens', () => {
    const { text } = of('web', 'web-7f', 'shop')
    const [web, pod, shop] = [text('web'), text('web-7f'), text('shop')]
    expect(text('web-7f.shop.svc:80, web-8a, web.')).toBe(`${pod}.${shop}.svc:80, ${web}-8a, ${web}.`)
    expect(text('webs website cobweb')).toBe('webs website cobweb')
  })

  it('leaves addresses alone, also where a name looks like a part of one', () => {
    const { text } = of('db', 'cafe', 'a1')
    expect(text('2001:db:cafe::a1, 10.0.0.1:80, ::a1/64')).toBe('2001:db:cafe::a1, 10.0.0.1:80, ::a1/64')
    expect(text('a1/db:http')).toBe(`${text('a1')}/${text('db')}:http`)
    expect(text('a1')).not.toBe('a1')
  })

  it('keeps words of settings and fields, unless they name an object', () => {
    const { json, text } = of('iptables', 'services', 'shop')
    const value = { services: [{ service: 'shop/services' }], mode: 'iptables', 'shop/services': 1 }
    const pair = text('shop/services')
    expect(json(value)).toEqual({ services: [{ service: pair }], mode: 'iptables', [pair]: 1 })
    const ipset = { type: 'hash:ip,port', scheduler: 'rr' }
    expect(of('hash', 'rr', 'port').json(ipset)).toEqual(ipset)
  })

  it('has a pseudonym for each of many short names, and no two alike', () => {
    const names = [...'abcdefghijklmnopqrstuvwxyz'].flatMap(a => [...'abcdefghij'].map(b => `${a}${b}`))
    const { text } = of(...names)
    expect(new Set(names.map(name => text(name))).size).toBe(names.length)
  })

  it('collects names of objects in lines of a log', () => {
    const names = new Set<string>()
    collectNamesInText(
      [
        'I 2026-11-26T10:00:00Z removed Service oldshop/secretcart changes=3',
        'W refused object="EndpointSlice other/gone-x" service=other/gone node=worker-7',
        'I reading file /etc/kubernetes/proxy and API server https://10.0.0.1:6443',
      ].join('\n'),
      names,
    )
    expect([...names].sort()).toEqual(['gone', 'gone-x', 'oldshop', 'other', 'secretcart', 'worker-7'])
  })

  it('collects names of objects, and none that every cluster has', () => {
    const names = new Set<string>()
    collectNames(
      {
        events: [
          {
            kind: 'Node',
            key: 'node-1',
            value: { name: 'node-1', zone: 'zone-a', podCidrs: ['10.0.0.0/8'] },
          },
          {
            kind: 'EndpointSlice',
            key: 'shop/cart-x',
            value: { service: 'shop/cart', targetNames: 'p-1,p-2' },
          },
        ],
        refused: [{ object: 'Service default/evil', reason: 'see a/b' }],
        services: ['kube-system/dns'],
      },
      names,
    )
    expect([...names].sort()).toEqual(
      ['node-1', 'zone-a', 'shop', 'cart-x', 'cart', 'p-1', 'p-2', 'evil', 'dns'].sort(),
    )
  })
})

it('F176: a redacted bundle has a name in no octet, nor a hash of one', () => {
  const port = {
    name: 'secretshop/hiddencart:http',
    protocol: 'TCP',
    cluster: [{ ip: '10.1.0.1', port: 80 }],
    local: [],
  }
  const file = (name: string, text: string) => ({ name, about: '', data: Buffer.from(text) })
  const { svc } = portChains(KUBE_CHAINS, port.name, 'TCP')
  const { facts, files, missing } = redacted(
    {
      facts: { kprobe: '1', node: 'private-node', host: 'private-host' },
      files: [
        file(
          'state.json',
          JSON.stringify({ services: [{ service: 'secretshop/hiddencart', ports: [port] }] }),
        ),
        file('dump.txt', `secretshop/hiddencart:http ${svc} private-node private-host.example`),
        file('snapshot.json', JSON.stringify({ events: [{ kind: 'ServiceCIDR', key: 'secretrange' }] })),
        file('log.txt', 'service=secretshop/hiddencart hiddencart-7f9 "private-node"'),
      ],
      missing: [{ name: 'x', why: 'cannot reach private-host' }],
    },
    KEY,
  )
  const all = Buffer.concat([
    Buffer.from(JSON.stringify({ facts, missing })),
    ...files.map(({ data }) => data),
  ])
  for (const name of [
    'secretshop',
    'hiddencart',
    'secretrange',
    'private-node',
    'private-host',
    svc.slice(-16),
  ])
    expect(all.includes(name), name).toBe(false)
  // What follows from the names follows from the pseudonyms.
  const [state, dump] = files.map(({ data }) => data.toString())
  const [, renamed = ''] = /"name":"([^"]+)"/.exec(state ?? '') ?? []
  expect(dump).toContain(`${renamed} ${portChains(KUBE_CHAINS, renamed, 'TCP').svc} `)
  expect(all.includes(KEY)).toBe(false)
})
