import { join } from 'node:path'
import type { Binaries } from './binaries.ts'
import { Program } from './process.ts'

/** Ports of etcd, on the loopback address. */
interface EtcdPorts {
  readonly clientPort: number
  readonly peerPort: number
}

/** Flags of an etcd that keeps its data in `folder`, for a test. */
export function etcdArgs(folder: string, { clientPort, peerPort }: EtcdPorts): readonly string[] {
  const client = `http://127.0.0.1:${clientPort}`
  const peer = `http://127.0.0.1:${peerPort}`
  return [
    `--data-dir=${join(folder, 'etcd')}`,
    `--listen-client-urls=${client}`,
    `--advertise-client-urls=${client}`,
    `--listen-peer-urls=${peer}`,
    `--initial-advertise-peer-urls=${peer}`,
    `--initial-cluster=default=${peer}`,
    '--unsafe-no-fsync',
    '--log-level=warn',
  ]
}

/** A folder has the data and the logs of both programs, tokens.csv, and sa.key, the key of service accounts. */
interface ProgramOptions {
  readonly binaries: Binaries
  readonly folder: string
  readonly flags: readonly string[]
}

export function startEtcd(ports: EtcdPorts, { binaries, folder, flags }: ProgramOptions): Program {
  const args = [...etcdArgs(folder, ports), ...flags]
  return new Program({ name: 'etcd', file: binaries.etcd, args, log: join(folder, 'etcd.log') })
}

interface ApiServerPlace {
  readonly port: number
  readonly etcdPort: number
  /** One or two, with a comma. */
  readonly serviceCidrs: string
}

export function startApiServer(
  { port, etcdPort, serviceCidrs }: ApiServerPlace,
  { binaries, folder, flags }: ProgramOptions,
): Program {
  const args = [
    `--etcd-servers=http://127.0.0.1:${etcdPort}`,
    `--cert-dir=${folder}`,
    '--bind-address=127.0.0.1',
    // Only told to others: without a default route there is none to be found.
    '--advertise-address=192.0.2.1',
    // Nor is the API server itself an endpoint of anything.
    '--endpoint-reconciler-type=none',
    `--secure-port=${port}`,
    `--service-cluster-ip-range=${serviceCidrs}`,
    `--token-auth-file=${join(folder, 'tokens.csv')}`,
    '--authorization-mode=RBAC',
    // The API server takes the public half from the file of the private one.
    `--service-account-key-file=${join(folder, 'sa.key')}`,
    `--service-account-signing-key-file=${join(folder, 'sa.key')}`,
    '--service-account-issuer=https://reference.example',
    '--disable-admission-plugins=ServiceAccount',
    ...flags,
  ]
  const log = join(folder, 'kube-apiserver.log')
  return new Program({ name: 'kube-apiserver', file: binaries.kubeApiserver, args, log })
}
