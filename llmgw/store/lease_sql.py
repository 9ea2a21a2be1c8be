"""The lease in PostgreSQL: its two tables, and the statements, each one transaction.

Two rows, so that a renewal never waits behind the leader's own fenced writes: those hold ``leader_epoch`` FOR SHARE,
renewals write ``leader_lease``. Both rows are locked in one order, the lease before the epoch.
``clock_timestamp()`` is asked before a statement waits for a lock, so a wait makes a lease shorter, never longer.
"""

CHANNEL = "llmgw_leader"  # NOTIFY: the lease row was released, or its leader became ready

# It rises when a standby database takes over; the first eight digits of a WAL file's name.
_TIMELINE = "('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint"

LEASE_DDL = f"""
-- The fence: changes only when leadership does; fenced writers hold it FOR SHARE. n never falls.
create table leader_epoch (
    id integer primary key check (id = 1), n bigint not null default 0, epoch bigint not null,
    nonce text not null default ''
);
-- The heartbeat: a row of its own, so that it never waits for a fenced writer. written: the timeline it was written in.
create table leader_lease (
    id integer primary key check (id = 1), holder text not null default '', n bigint not null default 0,
    epoch bigint not null default 0, nonce text not null default '', renew_seq bigint not null default 0,
    renewals bigint not null default 0, lease_until timestamptz not null default '-infinity',
    since timestamptz not null default '-infinity', released boolean not null default true,
    ready boolean not null default false, written bigint not null default 0, name text not null default '',
    client text not null default '', admin text not null default '', agents text not null default ''
);
insert into leader_epoch (id, epoch) values (1, 0);
insert into leader_lease (id, written) select 1, {_TIMELINE};
"""

_UNTIL = "clock_timestamp() + %(ttl)s::float8 * interval '1 second'"
_OURS = "holder = %(me)s and n = %(n)s and epoch = %(epoch)s and nonce = %(nonce)s and not released"

LOOK = f"""
select holder, n, epoch, nonce, renew_seq, released, ready, written, {_TIMELINE}, renewals,
       case when lease_until = '-infinity' then null
            else extract(epoch from lease_until - clock_timestamp())::float8 end,
       case when since = '-infinity' then null else extract(epoch from clock_timestamp() - since)::float8 end,
       name, client, admin, agents, pg_backend_pid()
  from leader_lease where id = 1
"""

# By one of three rights, and only if the row still is what was looked at, in the timeline it was looked at.
ACQUIRE = f"""
with l as (select * from leader_lease where id = 1 for no key update),
     t as (select {_TIMELINE} as timeline),
     e as (update leader_epoch
              set n = greatest(leader_epoch.n, t.timeline), epoch = leader_epoch.epoch + 1, nonce = %(fresh)s
             from l, t
            where leader_epoch.id = 1 and l.renew_seq = %(seq)s and t.timeline = %(timeline)s
              and case %(right)s when 'RELEASED' then l.released
                                 when 'EXPIRED' then l.released or l.lease_until < clock_timestamp()
                                 else true end
           returning leader_epoch.n, leader_epoch.epoch, t.timeline)
update leader_lease
   set holder = %(me)s, n = e.n, epoch = e.epoch, nonce = %(fresh)s, renew_seq = renew_seq + 1, renewals = 0,
       released = false, ready = false, written = e.timeline, since = clock_timestamp(), lease_until = {_UNTIL},
       name = %(name)s, client = %(client)s, admin = %(admin)s, agents = %(agents)s
  from e where leader_lease.id = 1
returning leader_lease.n, leader_lease.epoch, leader_lease.renew_seq, pg_backend_pid()
"""

RENEW = f"""
update leader_lease
   set renew_seq = renew_seq + 1, renewals = renewals + 1, ready = %(ready)s = 1, written = {_TIMELINE},
       name = %(name)s, client = %(client)s, admin = %(admin)s, agents = %(agents)s, lease_until = {_UNTIL}
 where id = 1 and {_OURS} returning renew_seq, pg_backend_pid()
"""

# An expired lease that nobody has taken may still be given back. Whoever commits this is heard on CHANNEL.
RELEASE = f"""
with l as (update leader_lease
              set released = true, ready = false, written = {_TIMELINE}, lease_until = clock_timestamp()
            where id = 1 and {_OURS} returning 1)
select pg_notify('{CHANNEL}', 'released'), pg_backend_pid() from l
"""

LIFT = f"""
with l as (select 1 from leader_lease where id = 1 and {_OURS} for no key update),
     e as (update leader_epoch
              set n = greatest(n, %(above_n)s), epoch = greatest(epoch, %(above_epoch)s) + 1, nonce = %(fresh)s
             from l
            where id = 1 and n = %(n)s and epoch = %(epoch)s and nonce = %(nonce)s
           returning n, epoch, nonce)
update leader_lease set n = e.n, epoch = e.epoch, nonce = e.nonce, written = {_TIMELINE}
  from e where leader_lease.id = 1 returning leader_lease.n, leader_lease.epoch, pg_backend_pid()
"""

NOTIFY = f"select pg_notify('{CHANNEL}', 'ready'), pg_backend_pid()"
LISTEN = f"listen {CHANNEL}"
