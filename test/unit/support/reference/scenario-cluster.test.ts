import { expect, test } from 'vitest'
import { readFileOfDifferences } from '../../../support/reference/differences.ts'
import { referenceConfig } from '../../../support/reference/kube-proxy-peer.ts'
import { completed, proxyConfigOf } from '../../../support/reference/scenario-cluster.ts'
import { loadScenarios } from '../../../support/scenario.ts'

function service(spec: object) {
  return { apiVersion: 'v1', kind: 'Service', metadata: { namespace: 'ns1', name: 'web', uid: 'a' }, spec }
}

test('two cluster addresses ask for both families, and what the server sets is left to it', () => {
  const { metadata, spec } = completed(service({ clusterIPs: ['172.30.0.41', 'fd00:172:30::41'] }))
  expect(metadata).toEqual({ namespace: 'ns1', name: 'web' })
  expect(spec).toMatchObject({ ipFamilyPolicy: 'RequireDualStack' })
})

test('an external name has no cluster address', () => {
  const { spec } = completed(service({ type: 'ExternalName', clusterIP: '172.30.0.50' }))
  expect(spec).toEqual({ type: 'ExternalName' })
})

test("a scenario's settings replace those of the reference", () => {
  const config = proxyConfigOf({
    masqueradeBit: 3,
    nodePortAddresses: ['primary'],
    allowedExternalCidrs: ['::/0'],
  })
  expect(referenceConfig({ kubeconfig: 'f', nodeName: 'n', config })).toMatchObject({
    hostnameOverride: 'n',
    nodePortAddresses: ['primary'],
    nftables: { masqueradeBit: 3, masqueradeAll: false },
  })
})

test('every listed difference is about a scenario, and has a reason in docs/differences.md', () => {
  const { differences, refused, notComparable } = readFileOfDifferences()
  const files = new Set(loadScenarios().map(({ file }) => file))
  const named = [...differences, ...refused].map(({ scenario }) => scenario)
  expect([...named, ...notComparable.keys()].filter(file => !files.has(file))).toEqual([])
})
