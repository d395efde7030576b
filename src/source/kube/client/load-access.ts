import { isIP } from 'node:net'
import { ApiError } from '../api-client.ts'
import { readSmallFile } from './cached-file.ts'
import { type Access, readKubeconfig } from './kubeconfig.ts'

export const SERVICE_ACCOUNT_FOLDER = '/var/run/secrets/kubernetes.io/serviceaccount'

export interface AccessOptions {
  /** Path of a kubeconfig; may be empty. */
  readonly kubeconfig: string
  /** URL of the server; may be empty. */
  readonly master: string
  readonly env: Readonly<Record<string, string | undefined>>
  readonly serviceAccountFolder: string
}

/**
 * How the server is reached: by a kubeconfig, whose server `master` replaces; by `master` alone, anonymously; or, with
 * neither, by what the pod was given (client-go's InClusterConfig). Throws ApiError 'credentials'.
 */
export async function loadAccess(options: AccessOptions): Promise<Access> {
  const { kubeconfig, master } = options
  if (kubeconfig !== '') {
    const text = await readSmallFile(kubeconfig, 'kubeconfig')
    return readKubeconfig({ path: kubeconfig, text, master })
  }
  if (master !== '') return { ...ANONYMOUS, where: '--master', server: master }
  return inCluster(options)
}

const ANONYMOUS: Access = {
  where: '',
  server: '',
  ca: undefined,
  insecure: false,
  tlsServerName: undefined,
  proxyUrl: undefined,
  token: undefined,
  basic: undefined,
  cert: undefined,
  key: undefined,
  exec: undefined,
  impersonation: {},
}

function inCluster({ env, serviceAccountFolder }: AccessOptions): Access {
  const host = env.KUBERNETES_SERVICE_HOST ?? ''
  const port = env.KUBERNETES_SERVICE_PORT ?? ''
  if (host === '' || port === '')
    throw new ApiError(
      'credentials',
      'no kubeconfig and no --master are given, and KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: kprobe does not run in a pod; give --kubeconfig, --master or --source=file:PATH',
    )
  return {
    ...ANONYMOUS,
    where: 'in-cluster configuration',
    server: `https://${isIP(host) === 6 ? `[${host}]` : host}:${port}`,
    ca: { kind: 'file', path: `${serviceAccountFolder}/ca.crt` },
    token: { kind: 'file', path: `${serviceAccountFolder}/token` },
  }
}
