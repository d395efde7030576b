// The "all-ip" proxy: every port and protocol of a Service's external addresses goes to one of its endpoints.
import { hostname } from 'node:os'
import { fileSource, kubeSource, runDataplane } from 'kprobe'
import * as nft from 'kprobe/nft'

const [serviceProxyName = 'all-ip', path] = process.argv.slice(2)
const { NODE_NAME: nodeName = hostname(), KUBECONFIG: kubeconfig = '' } = process.env
const here = { nodeName, serviceProxyName }

/** @type {nft.RulesetPlaneOptions['render']} */
function render(layout, { services }) {
  const masquerading = { layout, masqueradeMark: 0x2000, detector: undefined }
  const [from, to] = [nft.sourceAddress(layout, nft.WORK), nft.destinationAddress(layout, nft.WORK)]
  const behindFrom = nft.destinationAddress(layout, nft.WORK + layout.addressRegs)
  const ask = nft.askMasquerade(masquerading)
  const translate = [
    nft.rule([to, nft.matches('remote'), ...ask], 'answers have to come back to this node'),
    nft.rule([from, behindFrom, nft.matches('hairpin'), ...ask], 'an endpoint to itself'),
    nft.rule([to, nft.mapped('endpoints', nft.WORK, nft.WORK), nft.translateAddress(layout, nft.WORK)]),
  ]
  const chains = nft.natChains({ translate, postrouting: [nft.masqueradeMarked(masquerading)] })
  const pairs = nft.addressSet(layout, 'hairpin', 2)
  const sets = [nft.addressMap(layout, 'endpoints'), nft.addressSet(layout, 'remote'), pairs]
  const elements = services.values().map(service => elementsOf(service, layout.model))
  return nft.makeTable({ family: layout.family, name: 'all-ip', chains, sets, elements })
}
/** @type {(service: import('kprobe').ServiceFrontends, family: string) => [string, nft.Element[]]} */
function elementsOf({ service, wholes = [] }, family) {
  const whole = wholes.find(each => each.family === family)
  const endpoint = whole?.local[0] ?? whole?.cluster.find(({ local }) => local) ?? whole?.cluster[0]
  if (whole === undefined || endpoint === undefined) return [service, []]
  const { ip: data, local } = endpoint
  const also = { set: local ? 'hairpin' : 'remote', data: undefined, comment: service }
  const first = { set: 'endpoints', data, comment: service }
  return [service, whole.ips.flatMap(key => [{ ...first, key }, { ...also, key: local ? data + key : key }])]
}
const client = nft.openNftClient()
const plane = nft.createRulesetPlane({ name: 'all-ip', client, render })
const source = path === undefined ? kubeSource({ ...here, kubeconfig }) : fileSource({ ...here, path })
await runDataplane({ ...here, source, plane }).finally(() => client.close())
