import { afterAll, beforeAll, expect, test } from 'vitest'
import { STEP_MS } from '../support/mode-switch.ts'
import { OBJECTS, SharedNode, tableNames } from '../support/named-proxies.ts'

/* docs/decisions/0021: named proxies beside a main one in IPVS mode, which only the guest's kernel has. */

const PLAIN = `
  pod     TCP 172.30.0.41:80 -> 10.180.0.1:80 kept
  outside UDP 172.30.0.41:53 -> 10.180.0.1:53 masqueraded
  pod     TCP 172.30.0.41:81 -> reject
`
const RED = `
  pod     TCP 172.30.0.42:80 -> 10.180.0.2:80 kept
  node    TCP 172.30.0.42:80 -> 10.180.0.2:80 masqueraded
  outside TCP 192.168.0.2:30020 -> 10.180.0.2:80 kept
  outside TCP 198.51.100.5:80 -> 10.180.0.2:80 kept
`
const BLUE = `
  outside TCP 198.51.100.6:80 -> 10.180.0.3:80 10.180.0.4:80 masqueraded
  outside TCP [2001:db8:99::6]:80 -> [fd00:10::3]:80 masqueraded
`
const NOBODYS = `
  pod     TCP 172.30.0.99:80 -> drop
  node    TCP 172.30.0.99:80 -> drop
`

let node: SharedNode

beforeAll(async () => {
  node = await SharedNode.open()
})

afterAll(async () => {
  await node?.close()
})

// With chains of iptables, the main one's own come at -101: behind blue's (-102), and before red's (-100).
test('beside IPVS mode, named ones serve in the modes iptables and nftables', async () => {
  node.write(OBJECTS)
  await node.launch('red', '--proxy-mode=iptables').synced(STEP_MS)
  await node.launch('blue').synced(STEP_MS)
  await node.launch('', '--proxy-mode=ipvs', '--ipvs-rules=iptables').synced(STEP_MS)
  expect(tableNames()).toContain('table ip kube-proxy-ipvs')
  await node.expectPackets(`${PLAIN}${RED}${BLUE}${NOBODYS}`)
})
