import { mkdirSync, writeFileSync } from 'node:fs'
import { connect } from 'node:net'
import { join } from 'node:path'
import { expect } from 'vitest'
import { Daemons } from '../support/daemon.ts'
import { ip } from '../support/lab/topology.ts'
import { serviceOf } from '../support/objects.ts'
import { patientMs } from '../support/patience.ts'
import { API_ADDRESS } from './api-apart.ts'
import { Cluster } from './cluster.ts'

export type Mode = 'nftables' | 'iptables' | 'userspace' | 'ipvs'
/** `local`: the API server answers at an address of the node that the Node object does not list, such as a VIP. */
export type Where = 'local' | 'apart'

export const PORTS = [{ name: 'http', port: 80, protocol: 'TCP' }]
/** An address of the node at which nothing listens: connections to it end at once. */
export const NOWHERE = '10.99.0.1'

/** A cluster whose API server a Service asks for. */
export class ApiCapture {
  readonly cluster: Cluster
  readonly #daemons = new Daemons()

  private constructor(cluster: Cluster) {
    this.cluster = cluster
  }

  static async open(where: Where): Promise<ApiCapture> {
    const cluster = await Cluster.open(
      where === 'apart' ? { apart: true } : { server: { host: '0.0.0.0', tls: true } },
    )
    if (where === 'local') ip([`addr add ${API_ADDRESS}/32 dev lo`])
    const server = `https://${API_ADDRESS}:${cluster.server.port}`
    cluster.configure({ server, tlsServerName: 'localhost' })
    return new ApiCapture(cluster)
  }

  async close(): Promise<void> {
    await this.#daemons.end()
    await this.cluster.close()
  }

  /** A Service whose external address and port are the API server's. */
  thief(change: object = {}): object {
    const ports = [{ name: 'http', port: this.cluster.server.port, protocol: 'TCP' }]
    return serviceOf('thief', '172.30.9.9', { externalIPs: [API_ADDRESS], ports, ...change })
  }

  /** Whether a process of the node can connect, to the API server unless it says where. */
  isOpen(host = API_ADDRESS, port = this.cluster.server.port): Promise<boolean> {
    return new Promise(resolve => {
      const socket = connect({ host, port, timeout: patientMs(5_000) })
      const end = (open: boolean) => {
        socket.destroy()
        resolve(open)
      }
      socket.once('connect', () => end(true))
      socket.once('error', () => end(false))
      socket.once('timeout', () => end(false))
    })
  }

  /** What a daemon that knows nothing of the API server leaves in the kernel. */
  async programmed(mode: Mode, objects: readonly object[], more: readonly string[] = []): Promise<void> {
    const folder = this.#daemons.folder()
    mkdirSync(join(folder, 'objects'))
    writeFileSync(
      join(folder, 'objects', 'all.json'),
      JSON.stringify({ apiVersion: 'v1', kind: 'List', items: objects }),
    )
    const args = [`--proxy-mode=${mode}`, '--allowed-external-cidrs=198.51.100.0/24', ...more]
    const daemon = await this.#daemons.running({ source: join(folder, 'objects'), args })
    await daemon.stop()
  }

  async captured(...what: Parameters<ApiCapture['programmed']>): Promise<void> {
    await this.programmed(...what)
    expect(await this.isOpen()).toBe(false)
  }
}
