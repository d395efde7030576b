import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import type { Site } from './site.ts'

/*
 * kube-proxy as kubeadm 1.36 and 1.37 install it: service account, binding, ConfigMap and DaemonSet, with the image of kprobe, or
 * kube-proxy itself.
 * Source: cmd/kubeadm/app/phases/addons/proxy/manifests.go of kubernetes.
 */

const NAME = 'kube-proxy'
const NAMESPACE = 'kube-system'
const LABELS = { 'k8s-app': NAME }
const RBAC = 'rbac.authorization.k8s.io'

export interface KubeadmOptions {
  readonly mode: string
  /** The only word in which the DaemonSet differs. */
  readonly image: string
  /** kube-proxy itself, a file of the nodes, where the image has none. */
  readonly program?: string
  /** The checkout: it has the ConfigMap's config.conf. */
  readonly root: string
}

export function kubeadmObjects(
  site: Site,
  { mode, image, root, program }: KubeadmOptions,
): readonly object[] {
  const own = { name: NAME, namespace: NAMESPACE }
  const configuration = configurationOf(site, { mode, root })
  return [
    { apiVersion: 'v1', kind: 'ServiceAccount', metadata: own },
    {
      apiVersion: `${RBAC}/v1`,
      kind: 'ClusterRoleBinding',
      metadata: { name: 'kubeadm:node-proxier' },
      roleRef: { apiGroup: RBAC, kind: 'ClusterRole', name: 'system:node-proxier' },
      subjects: [{ kind: 'ServiceAccount', ...own }],
    },
    {
      apiVersion: 'v1',
      kind: 'ConfigMap',
      metadata: { ...own, labels: { app: NAME } },
      data: { 'config.conf': configuration, 'kubeconfig.conf': kubeconfig(site) },
    },
    {
      apiVersion: 'apps/v1',
      kind: 'DaemonSet',
      metadata: { ...own, labels: LABELS },
      spec: {
        selector: { matchLabels: LABELS },
        updateStrategy: { type: 'RollingUpdate' },
        template: { metadata: { labels: LABELS }, spec: podOf(image, program) },
      },
    },
  ]
}

function podOf(image: string, program: string | undefined): object {
  const mount = { mountPath: '/usr/local/bin/kube-proxy', name: 'program', readOnly: true }
  const volume = { name: 'program', hostPath: { path: program, type: 'File' } }
  return {
    priorityClassName: 'system-node-critical',
    containers: [
      {
        name: NAME,
        image,
        imagePullPolicy: 'IfNotPresent',
        command: [
          '/usr/local/bin/kube-proxy',
          '--config=/var/lib/kube-proxy/config.conf',
          '--hostname-override=$(NODE_NAME)',
        ],
        securityContext: { privileged: true },
        volumeMounts: [
          { mountPath: '/var/lib/kube-proxy', name: NAME },
          { mountPath: '/run/xtables.lock', name: 'xtables-lock', readOnly: false },
          { mountPath: '/lib/modules', name: 'lib-modules', readOnly: true },
          ...(program === undefined ? [] : [mount]),
        ],
        env: [{ name: 'NODE_NAME', valueFrom: { fieldRef: { fieldPath: 'spec.nodeName' } } }],
      },
    ],
    hostNetwork: true,
    serviceAccountName: NAME,
    volumes: [
      { name: NAME, configMap: { name: NAME } },
      { name: 'xtables-lock', hostPath: { path: '/run/xtables.lock', type: 'FileOrCreate' } },
      { name: 'lib-modules', hostPath: { path: '/lib/modules' } },
      ...(program === undefined ? [] : [volume]),
    ],
    tolerations: [{ operator: 'Exists' }],
    nodeSelector: { 'kubernetes.io/os': 'linux' },
  }
}

/** As kubeadm writes it, but for the mode, the cluster's ranges, and the connection table, which all nodes share here. */
function configurationOf(site: Site, { mode, root }: Pick<KubeadmOptions, 'mode' | 'root'>): string {
  const pods = site.subnets.map(subnets => subnets.pods).join(',')
  return readFileSync(join(root, 'test/unit/config/kubeadm-config.yaml'), 'utf8')
    .replace('mode: ""', `mode: ${mode}`)
    .replace('clusterCIDR: 10.244.0.0/16', `clusterCIDR: ${pods}`)
    .replace('maxPerCore: null', 'maxPerCore: 0')
    .replace('min: null', 'min: 0')
}

function kubeconfig(site: Site): string {
  const account = '/var/run/secrets/kubernetes.io/serviceaccount'
  return JSON.stringify({
    apiVersion: 'v1',
    kind: 'Config',
    clusters: [
      { name: 'default', cluster: { 'certificate-authority': `${account}/ca.crt`, server: site.apiUrl } },
    ],
    contexts: [{ name: 'default', context: { cluster: 'default', namespace: 'default', user: 'default' } }],
    users: [{ name: 'default', user: { tokenFile: `${account}/token` } }],
    'current-context': 'default',
  })
}
