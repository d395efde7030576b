import { setTimeout as sleep } from 'node:timers/promises'
import {
  joinNode,
  lastNode,
  pauseEtcd,
  powerOff,
  powerOn,
  removeNode,
  restartApiServer,
  withNextNode,
} from './cluster.ts'
import { renewCertificate, trustsAuthority } from './control-plane.ts'
import { BALANCE } from './life-balance.ts'
import { HAND_OVERS } from './life-hand-over.ts'
import { requireConnected, sendNewcomers } from './life-newcomers.ts'
import { OUTAGES } from './life-outages.ts'
import { READINESS } from './life-readiness.ts'
import {
  brokenOf,
  byLastNode,
  changeServices,
  drain,
  followed,
  isKprobe,
  isPod,
  type LifeEvent,
  podsOf,
  proxyOf,
  roll,
  whole,
} from './life-steps.ts'
import { UPGRADES } from './life-upgrade.ts'
import { admitNode, changeMode, deletePods, evictPods, settledPods, starvePods } from './pods.ts'
import { killProxies, replaceProxies, requireMode, resumeProxy } from './proxies.ts'

const QUIET_MS = 5_000
/** Pods that start on a node that has joined. */
const NEWCOMERS = 10

const always = (): boolean => true

export const EVENTS: readonly LifeEvent[] = [
  { name: 'quiet', what: 'nothing happens', suits: always, run: () => sleep(QUIET_MS) },
  {
    name: 'roll',
    what: 'a deployment is rolled, with readiness and grace period',
    suits: always,
    run: life => roll(life, life.rounds),
  },
  {
    name: 'kill',
    what: 'every proxy is killed while Services change',
    suits: always,
    run: async life => {
      await killProxies(proxyOf(life), life, () => changeServices(life))
      await roll(life)
    },
  },
  {
    name: 'delete',
    what: 'the pods of the proxy are deleted while Services change',
    suits: isPod,
    run: async life => {
      await deletePods(podsOf(life), () => changeServices(life))
      await roll(life)
    },
  },
  {
    name: 'evict',
    what: 'the pods of the proxy are evicted',
    suits: isPod,
    run: life => evictPods(podsOf(life)),
  },
  {
    name: 'oom',
    what: 'the proxy is killed for want of memory, again and again',
    suits: isPod,
    run: life => starvePods(podsOf(life)),
  },
  {
    name: 'mode',
    what: 'from nftables to iptables mode and back',
    suits: proxy => isKprobe(proxy) && proxy.form !== 'kubeadm' && proxy.mode === 'nftables',
    run: async life => {
      for (const mode of ['iptables', 'nftables'])
        if (isPod(proxyOf(life))) {
          await changeMode({ ...podsOf(life), mode })
          requireMode(life.site, { ...proxyOf(life), mode }, life.tools)
        } else await replaceProxies(life, { proxy: 'kprobe', mode, form: 'process' })
    },
  },
  ...HAND_OVERS,
  ...UPGRADES,
  ...BALANCE,
  {
    name: 'drain',
    what: 'the last node is drained, and takes pods again',
    suits: always,
    run: life => {
      drain(life)
      return whole(life)
    },
    mayFail: brokenOf,
  },
  {
    name: 'reboot',
    what: 'the last node is drained, and starts again with nothing in its kernel',
    suits: always,
    run: async life => {
      const node = lastNode(life.site)
      drain(life)
      powerOff(life, node)
      await powerOn(life, node, life.kubectl, life.signal)
      await resumeProxy(life, node)
      await whole(life)
    },
    mayFail: (flow, life) => Math.max(brokenOf(flow), byLastNode(flow, life)),
  },
  {
    name: 'apiserver',
    what: 'the API server is killed, and comes back',
    suits: always,
    run: async life => {
      await restartApiServer(life, life.kubectl)
      await followed(life)
    },
  },
  {
    name: 'certificate',
    what: 'the API server comes back with another key and certificate',
    suits: always,
    run: async life => {
      const { site } = life
      renewCertificate(site, 'kube-apiserver', `${trustsAuthority(site)}-other-kube-apiserver`)
      await restartApiServer(life, life.kubectl)
      await followed(life)
    },
  },
  {
    name: 'etcd',
    what: 'the store of the API server stands still for 20 s, then Services change',
    suits: always,
    run: async life => {
      await pauseEtcd(life, life.kubectl)
      await followed(life)
    },
  },
  {
    name: 'dns',
    what: "the pods of the cluster's DNS are replaced",
    suits: always,
    run: async ({ kubectl }) => {
      const dns = ['deployment/coredns', '--namespace', 'kube-system']
      kubectl.must(['rollout', 'restart', ...dns])
      kubectl.must(['rollout', 'status', ...dns, '--timeout=180s'])
    },
  },
  {
    name: 'join',
    what: `a node joins, ${NEWCOMERS} pods on it connect once each, and it goes`,
    suits: always,
    run: async life => {
      const { kubectl, signal, site, tools } = life
      const grown = withNextNode(site)
      const node = await joinNode(life, { grown, kubectl, signal })
      if (isPod(proxyOf(life))) admitNode(life, node)
      await resumeProxy({ site: grown, tools }, node)
      sendNewcomers(life, node, NEWCOMERS)
      await requireConnected(life, NEWCOMERS)
      removeNode(life, node, kubectl)
      if (isPod(proxyOf(life))) await settledPods(podsOf(life))
    },
  },
  ...OUTAGES,
  ...READINESS,
]
