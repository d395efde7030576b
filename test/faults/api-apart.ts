import { type ChildProcess, spawn } from 'node:child_process'
import { ApiServer, type ApiServerOptions } from '../support/apiserver/http-server.ts'
import { freshNetns } from '../support/lab/netns.ts'
import { inNamespace, ip } from '../support/lab/topology.ts'

/** The address of the API server, and the one of the node towards it. */
export const API_ADDRESS = '198.51.100.1'
const NODE_SIDE = '198.51.100.254'

/** An API server in a network namespace of its own. The next namespace is the node's, and `join` connects both. */
export interface ApiApart {
  readonly server: ApiServer
  join(): void
  close(): void
}

export async function apiServerApart(options: ApiServerOptions = {}): Promise<ApiApart> {
  freshNetns()
  ip(['link set lo up'])
  // A process that names the namespace; the sockets of this one stay in it, too.
  const holder = spawn('sleep', ['3600'], { stdio: 'ignore' })
  const pid = pidOf(holder)
  const server = await ApiServer.start({ ...options, host: '0.0.0.0', relay: false })
  const join = (): void => {
    ip([`link add api0 type veth peer name e0 netns ${pid}`])
    ip([`addr add ${NODE_SIDE}/24 dev api0`, 'link set api0 up'])
    inNamespace(pid, ['ip', 'addr', 'add', `${API_ADDRESS}/24`, 'dev', 'e0'])
    inNamespace(pid, ['ip', 'link', 'set', 'e0', 'up'])
  }
  return { server, join, close: () => holder.kill() }
}

function pidOf({ pid }: ChildProcess): number {
  if (pid === undefined) throw new Error('the namespace has no process')
  return pid
}
