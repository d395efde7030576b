import { describe, expect, it } from 'vitest'
import { identityOf, isRefusal } from '../../../../src/model/fields.ts'
import { parseService } from '../../../../src/model/parse-service.ts'
import type { Service } from '../../../../src/model/service.ts'
import { type MigrationFacts, migrationChanges } from '../../../../src/modes/foreign/migration.ts'
import { serviceOf } from '../../../support/objects.ts'
import { requestFrom } from '../../../support/parse-flags.ts'

function parsed(name: string, spec: object = {}, more: object = {}): Service {
  const service = parseService(
    identityOf('Service', JSON.parse(JSON.stringify(serviceOf(name, '10.96.0.10', spec, more)))),
  )
  if (isRefusal(service)) throw new Error(JSON.stringify(service))
  return service
}

const PLAIN = parsed('plain')
const NODE_PORT = parsed('web', {
  type: 'NodePort',
  ports: [{ name: 'http', port: 80, protocol: 'TCP', nodePort: 30_080 }],
})
const STICKY = parsed('sticky', { sessionAffinity: 'ClientIP' })
const LOCAL = parsed('local', { internalTrafficPolicy: 'Local' })
const GUARDED = parsed(
  'guarded',
  { type: 'LoadBalancer', externalIPs: ['192.0.2.10'], loadBalancerSourceRanges: ['198.51.100.0/24'] },
  { status: { loadBalancer: { ingress: [{ ip: '192.0.2.10' }] } } },
)

interface Options {
  readonly from?: MigrationFacts['from']
  readonly services?: readonly Service[]
  readonly argv?: readonly string[]
}

/** `WEIGHT SUBJECT: SERVICES` of all that is more than a note. */
function changes({ from = 'iptables', services = [PLAIN], argv = [] }: Options) {
  const { config, settings } = requestFrom(argv)
  const isNodePortsWritten = settings.origin('nodePortAddresses') !== undefined
  return migrationChanges({ from, config, isNodePortsWritten, services, refusals: [] })
    .filter(({ weight }) => weight !== 'note')
    .map(each => `${each.weight} ${each.subject}: ${each.services.join()}`)
}

const PORTS = 'differs node ports: ns/web'
const LOCALHOST = 'differs node ports at 127.0.0.1: ns/web'

describe('the change from kube-proxy', () => {
  it('concerns no ClusterIP Service', () => {
    for (const from of ['iptables', 'ipvs', 'nftables'] as const) expect(changes({ from })).toEqual([])
  })

  it.each<[string, Options, readonly string[]]>([
    ['iptables mode', {}, [PORTS, LOCALHOST]],
    ['IPVS mode', { from: 'ipvs' }, [PORTS]],
    ['nftables mode', { from: 'nftables' }, []],
    ['iptables mode to the same', { argv: ['--proxy-mode=iptables'] }, []],
    ['iptables mode with every address', { argv: ['--nodeport-addresses=0.0.0.0/0,::/0'] }, [LOCALHOST]],
    ['iptables mode with both', { argv: ['--nodeport-addresses=0.0.0.0/0,127.0.0.0/8'] }, []],
    ['iptables mode without loopback', { argv: ['--nodeport-addresses=10.0.0.0/8'] }, []],
    ['iptables mode that serves none there', { argv: ['--iptables-localhost-nodeports=false'] }, [PORTS]],
  ])('moves node ports where it should: %s', (_, options, expected) => {
    expect(changes({ services: [PLAIN, NODE_PORT], ...options })).toEqual(expected)
  })

  it('balances clients with session affinity anew, once, but where kprobe adopts them', () => {
    const services = [STICKY]
    const once = ['once session affinity: ns/sticky']
    expect(changes({ services })).toEqual(once)
    expect(changes({ services, from: 'nftables' })).toEqual(once)
    expect(changes({ services, argv: ['--proxy-mode=iptables'] })).toEqual([])
  })

  it('names policies and source ranges that a mode of kube-proxy does not keep', () => {
    expect(changes({ services: [LOCAL], from: 'ipvs' })).toEqual(['differs policy Local: ns/local'])
    expect(changes({ services: [LOCAL] })).toEqual([])
    expect(changes({ services: [GUARDED] })).toEqual(['differs loadBalancerSourceRanges: ns/guarded'])
    expect(changes({ services: [GUARDED], from: 'nftables' })).toEqual([])
  })

  it('names each refused field with its Service, and metrics and alerts by name', () => {
    const { config } = requestFrom([])
    const refusal = { object: 'Service ns/x', field: 'spec.externalIPs[0]', value: '10.0.0.1', reason: 'why' }
    const all = migrationChanges({
      from: 'iptables',
      config,
      isNodePortsWritten: false,
      services: [],
      refusals: [{ service: 'ns/x', refusal }],
    })
    expect(all[0]).toEqual({
      weight: 'differs',
      subject: 'Service ns/x: spec.externalIPs[0]',
      text: '10.0.0.1 is not served: why',
      services: ['ns/x'],
    })
    expect(all.find(({ subject }) => subject === 'metrics and alerts')?.text).toContain(
      'kubeproxy_sync_proxy_rules_nftables_sync_failures_total',
    )
  })
})
